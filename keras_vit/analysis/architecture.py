"""The architecture of a model."""

from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.preprocessing import preprocessing_layer


def model_config(model):
    """The config of a model of this package, also nested in another: a `ViTConfig` or another architecture's config."""
    return read_architecture(preprocessing_layer(model).architecture)


def merges_tokens(model):
    """Whether the blocks of a model of this package merge tokens. If they do, not every patch has a token."""
    return bool(getattr(model_config(model), "token_merging", 0))


def check_unmerged(num_merged):
    """Checks that the blocks of a model do not merge tokens. `num_merged` is the number that each block merges."""
    if num_merged:
        raise ValueError(
            f"A token for each patch is needed. Received: a model with token_merging={num_merged}. Build the model "
            f"with token_merging=0, load the same weights, and analyse that model."
        )


def is_vision_transformer(config):
    """Whether a config is that of a Vision Transformer, which has tokens and positions to analyse."""
    return isinstance(config, ViTConfig)
