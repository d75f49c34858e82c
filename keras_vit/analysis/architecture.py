"""What a model is made of."""

from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.preprocessing import preprocessing_layer


def model_config(model):
    """The config of a model of this package, also nested in another: a `ViTConfig`, or that of another architecture."""
    return read_architecture(preprocessing_layer(model).architecture)


def merges_tokens(model):
    """Whether a model of this package merges tokens, so that behind its blocks there is none for each patch."""
    return bool(getattr(model_config(model), "token_merging", 0))


def check_unmerged(config_or_block):
    """Refuses a config, or a block, with which tokens are merged."""
    num_merged = getattr(config_or_block, "token_merging", 0)
    if num_merged:
        raise ValueError(
            f"Where tokens are merged there is none for each patch. Received: a model with token_merging={num_merged}. "
            f"Build the model with token_merging=0, which takes the same weights, and look at that one."
        )


def is_vision_transformer(config):
    """Whether a config is that of a Vision Transformer, whose tokens and positions can be looked at."""
    return isinstance(config, ViTConfig)
