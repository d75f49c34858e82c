"""What a model is made of."""

from keras_vit.architectures import read_architecture
from keras_vit.config import ViTConfig
from keras_vit.preprocessing import preprocessing_layer


def model_config(model):
    """The config of a model of this package, also nested in another: a `ViTConfig`, or that of another architecture."""
    return read_architecture(preprocessing_layer(model).architecture)


def is_vision_transformer(config):
    """Whether a config is that of a Vision Transformer, whose tokens and positions can be looked at."""
    return isinstance(config, ViTConfig)
