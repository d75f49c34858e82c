"""From tokens to classes: pooling, the pre-logits layer, the classifier."""

import keras

from keras_vit import layers


def pool(tokens, config):
    """Tokens (B, T, D) to what `config.pooling` says: (B, D), or the tokens themselves."""
    if config.pooling is None:
        return tokens
    if config.pooling == "token":
        return layers.TokenPooling(name="pooling")(tokens)
    return layers.AverageTokenPooling(config.num_class_tokens, name="pooling")(tokens)


def represent(pooled, config):
    """The tanh layer of the pre-training head (ViT, arXiv 2010.11929, section 3.1), if the config has one."""
    if config.representation_dim is None:
        return pooled
    return keras.layers.Dense(
        config.representation_dim, activation="tanh", kernel_initializer="lecun_normal", name="pre_logits"
    )(pooled)


def classify(representation, classes, activation, config):
    """The classifier: a dense layer that starts at zero, in float32 under any precision policy. (B, classes)"""
    return keras.layers.Dense(
        classes,
        activation=activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        dtype="float32",
        name="predictions",
    )(representation)
