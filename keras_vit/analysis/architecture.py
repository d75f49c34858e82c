"""The architecture of a model."""

from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.preprocessing import preprocessing_layer


def model_config(model):
    """The config of a model of this package, such as a `ViTConfig`. The model may be nested in another."""
    return read_architecture(preprocessing_layer(model).architecture)


def merges_tokens(model):
    """Whether the blocks of a model of this package merge tokens. If they do, similar patches share a token."""
    return bool(getattr(model_config(model), "token_merging", 0))


def check_unmerged(num_merged):
    """Checks that `num_merged`, the number of tokens that each block of a model merges, is 0."""
    if num_merged:
        raise ValueError(
            f"Every patch must have its own token. Received: a model with token_merging={num_merged}. Build the model "
            f"with token_merging=0, load the same weights, and analyse that model."
        )


def is_vision_transformer(config):
    """Whether a config describes a Vision Transformer. Other models have no patch tokens and no position embeddings."""
    return isinstance(config, ViTConfig)
