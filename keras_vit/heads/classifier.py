"""Heads of the models: pooling, the pre-logits layer and the classifiers."""

import typing

import keras

from keras_vit import layers


def pool(tokens, config, sizes=None):
    """Pools tokens (B, T, D) to (B, D), or returns the tokens unchanged if `config.pooling` is `None`.

    `sizes` is (B, T), the number of patches that each token represents. In an average, a token of size 2 counts twice.
    """
    if config.pooling is None:
        return tokens
    is_weighted = config.pooling == "avg" and sizes is not None
    layer = POOLINGS[config.pooling](config)
    pooled = layer(tokens, sizes) if is_weighted else layer(tokens)
    if config.has_encoder_norm or not config.final_norm:
        return pooled
    return layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="pooled_norm")(pooled)


POOLINGS: dict[str, typing.Callable[..., keras.Layer]] = {
    "token": lambda config: layers.TokenPooling(name="pooling"),
    "avg": lambda config: layers.AverageTokenPooling(config.num_tokens_not_pooled, name="pooling"),
    "map": lambda config: layers.AttentionPooling(
        config.pooling_num_heads or config.num_heads,
        config.pooling_mlp_dim or config.mlp_dim,
        config.mlp,
        config.layer_norm_epsilon,
        config.num_tokens_not_pooled,
        name="pooling",
    ),
}
"""{pooling: function that receives the config and returns the layer}"""


def represent(pooled, config):
    """Applies the layers between pooling and classifier.

    These are the tanh layer of width `config.representation_dim` (ViT, arXiv 2010.11929, section 3.1), the linear layer
    of width `config.projection_dim` and, with `config.unit_representation`, the division by the length.
    """
    x = pooled
    if config.representation_dim is not None:
        width, options = config.representation_dim, {"activation": "tanh", "kernel_initializer": "lecun_normal"}
        x = keras.layers.Dense(width, **options, name="pre_logits")(x)
    if config.projection_dim is not None:
        x = keras.layers.Dense(config.projection_dim, dtype="float32", name="projection")(x)
    return keras.layers.UnitNormalization(dtype="float32", name="unit_length")(x) if config.unit_representation else x


def classify(representation, classes, activation, config):
    """Applies the classifier, a `Dense` layer in float32 under any precision policy. Returns (B, classes)."""
    return classifier("predictions", classes, activation, config.head_bias)(representation)


def classify_distilled(pooled, tokens, classes, activation, config):
    """Classifies the class token and the distillation token, and averages their logits (DeiT, arXiv 2012.12877).

    Args:
        pooled: (B, D), the class token.
        tokens: (B, T, D), the normalised tokens, with the distillation token at index 1.
    """
    distilled = layers.TokenPooling(1, name="distillation_pooling")(tokens)
    logits = [
        classifier("predictions", classes, None, config.head_bias)(pooled),
        classifier("distillation_predictions", classes, None, config.head_bias)(distilled),
    ]
    logits = keras.layers.Average(dtype="float32", name="mean_logits")(logits)
    return keras.layers.Activation(activation, dtype="float32", name="probabilities")(logits)


def classifier(name, classes, activation, head_bias=0.0):
    """Creates a classifier, a `Dense` layer in float32. The kernel starts at zero, the bias at `head_bias`."""
    return keras.layers.Dense(
        classes,
        activation=activation,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(head_bias),
        dtype="float32",
        name=name,
    )
