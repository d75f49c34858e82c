"""SANs, baselines of Visual Transformers: "Exploring Self-Attention for Image Recognition" (arXiv 2004.13621)."""

import collections.abc
import functools
import os
import typing

import keras

from keras_vit import layers
from keras_vit.architectures import SELF_ATTENTION_NETWORKS, SelfAttentionNetworkConfig, changed_config
from keras_vit.layers.convolutional.parts import batch_norm
from keras_vit.models.building import SharedArguments, build_on_trunk, resnet_with_weights
from keras_vit.models.factories import keras_application


def SelfAttentionNetwork(
    size: str | SelfAttentionNetworkConfig = "SAN19",
    include_top: bool = True,
    weights: str | os.PathLike | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    pooling: str | None = "avg",
    classes: int = 1000,
    classifier_activation: str | collections.abc.Callable | None = "softmax",
    include_preprocessing: bool = False,
    name: str | None = None,
    **config_changes: typing.Any,
) -> keras.Model:
    """Builds a SAN as a functional `keras.Model`.

    SANs are from "Exploring Self-Attention for Image Recognition" (arXiv 2004.13621). The layers are those of the
    authors' code (hszhao/SAN). The stem is a 1 x 1 convolution. Before each stage, the map is max-pooled by 2 x 2 and
    projected to the stage's width. The layers are named `preprocessing`, `stem_conv`, `stem_norm`, `stem_activation`,
    then for each stage `stage_0_pooling`, `stage_0_conv`, `stage_0_unit_0` and so on, `stage_0_norm`,
    `stage_0_activation`, then `pooling`, `predictions`.

    Args:
        size: `"SAN10"`, `"SAN15"`, `"SAN19"`, or a `keras_vit.architectures.SelfAttentionNetworkConfig`.
        input_shape: `(height, width, channels)`, by default `(224, 224, 3)`. Channels are last, whatever Keras's global
            setting is. `None` for height and width makes a model for images of any size. With the default
            windows of 7 x 7, images must have at least 128 pixels on each side. Otherwise the last map is too small for
            padding by reflection.
        pooling: `"avg"`: the mean over the map, (B, D). `None`, with `include_top=False`: the map (B, h, w, D). Each
            stage halves height and width, rounded down.
        weights: `None`, or the path of a `.weights.h5` file of a model of the same shape.
        include_top, input_tensor, classes, classifier_activation, include_preprocessing, name: As in
            `keras_vit.ViT`.
        **config_changes: Any field of `keras_vit.architectures.SelfAttentionNetworkConfig`, such as
            `relation="pairwise"`.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, classes), float32.

    Raises:
        TypeError: If a name in `config_changes` is not a field of the config.
        ValueError: If a value is invalid or not available. The message lists accepted values.

    Example:

    >>> import keras_vit
    >>> changes = {"stage_depths": (1, 1), "window_sizes": (3, 5), "width": 32}
    >>> model = keras_vit.baselines.SelfAttentionNetwork("SAN10", classes=10, input_shape=(16, 24, 3), **changes)
    >>> model.output_shape
    (None, 10)
    """
    shared = SharedArguments(
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, include_preprocessing
    )
    config = changed_config(SELF_ATTENTION_NETWORKS, size, config_changes)
    return resnet_with_weights(functools.partial(build_on_trunk, _trunk, name=name), config, shared)


def _trunk(images, config):
    """Computes the map (B, h, w, D) from normalised pixels (B, H, W, C)."""
    maps = layers.PaddedConv2D(config.width, 1, name="stem_conv")(images)
    maps = batch_norm(name="stem_norm")(maps)
    maps = keras.layers.ReLU(name="stem_activation")(maps)
    for stage, (depth, window_size) in enumerate(zip(config.stage_depths, config.window_sizes, strict=True)):
        # The second stage is four times as wide as the first, and each later stage twice as wide as the previous one.
        width = config.width * (1 if stage == 0 else 2 ** (stage + 1))
        name = f"stage_{stage}"
        maps = keras.layers.MaxPooling2D(2, data_format="channels_last", name=f"{name}_pooling")(maps)
        maps = layers.PaddedConv2D(width, 1, name=f"{name}_conv")(maps)
        for unit in range(depth):
            maps = layers.SelfAttentionUnit(config.relation, window_size, name=f"{name}_unit_{unit}")(maps)
        maps = batch_norm(name=f"{name}_norm")(maps)
        maps = keras.layers.ReLU(name=f"{name}_activation")(maps)
    return maps


def _published(relation):
    return keras_application(
        lambda **options: SelfAttentionNetwork("SAN19", relation=relation, **options),
        f"SAN19{relation.capitalize()}",
        f"Builds a {relation} SAN19 (arXiv 2004.13621, Table 1).",
        f'keras_vit.baselines.SelfAttentionNetwork("SAN19", relation="{relation}", ...)',
        SelfAttentionNetworkConfig,
        model_name=f"san_19_{relation}",
    )


SAN19Pairwise = _published("pairwise")
SAN19Patchwise = _published("patchwise")

__all__ = ["SAN19Pairwise", "SAN19Patchwise", "SelfAttentionNetwork"]
