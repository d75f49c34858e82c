"""What a model is made of."""

from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.preprocessing import preprocessing_layer


def model_config(model):
    """The config of a model of this package, also nested in another: a `ViTConfig`, or that of another architecture."""
    return read_architecture(preprocessing_layer(model).architecture)


def merges_tokens(model):
    """Whether the blocks of a model of this package merge tokens, so that there is no token for each patch."""
    return bool(getattr(model_config(model), "token_merging", 0))


def check_unmerged(num_merged):
    """Refuses a model whose blocks merge tokens, `num_merged` each."""
    if num_merged:
        raise ValueError(
            f"This needs a token for each patch. Received: a model with token_merging={num_merged}. Build the model "
            f"with token_merging=0, which takes the same weights, and analyse that one."
        )


def is_vision_transformer(config):
    """Whether a config is that of a Vision Transformer, whose tokens and positions can be looked at."""
    return isinstance(config, ViTConfig)
