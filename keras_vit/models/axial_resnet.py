"""AxialResNet, a baseline of ViT (arXiv 2010.11929, appendix D.6): a ResNet with axial attention.

"Axial-DeepLab: Stand-Alone Axial-Attention for Panoptic Segmentation" (arXiv 2003.07853), section 3.3.
"""

import collections.abc
import functools
import os

import keras

from keras_vit import layers
from keras_vit.architectures import AxialResNetConfig
from keras_vit.layers.convolutional.parts import batch_norm
from keras_vit.models.building import SharedArguments, build_on_trunk, resnet_with_weights
from keras_vit.models.factories import keras_application
from keras_vit.trunks.hybrid_resnet import stage_units


def AxialResNet(
    stage_depths: tuple[int, ...] = (3, 4, 6, 3),
    width: int = 32,
    num_heads: int = 8,
    include_top: bool = True,
    weights: str | os.PathLike | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    pooling: str | None = "avg",
    classes: int = 1000,
    classifier_activation: str | collections.abc.Callable | None = "softmax",
    include_preprocessing: bool = False,
    name: str | None = None,
) -> keras.Model:
    """Builds an AxialResNet as a functional `keras.Model`.

    Every 3 x 3 convolution of a ResNet is replaced by attention along the height, then along the width (Axial-DeepLab,
    arXiv 2003.07853, section 3.3; ViT, arXiv 2010.11929, appendix D.6). The batch norms are those of the authors' code
    (csrhddlam/axial-deeplab). Unlike in the authors' code, the classifier starts at zero, as in all models of this
    package. The tables of relative positions are as large as the maps, so a model accepts images of one size only. The
    layers are named `preprocessing`, `stem_conv`, `stem_norm`, `stem_activation`, `stem_pooling`, `stage_0_unit_0` and
    so on, `pooling`, `predictions`.

    Args:
        stage_depths: Number of units in each stage. ResNet-50 has `(3, 4, 6, 3)`.
        width: Channels of the stem, a multiple of `num_heads`. Stage s has `4 * width * 2**s` output channels. The
            width is 32, 48 and 64 in the paper's Axial-ResNet-S, M and L.
        num_heads: Number of attention heads.
        input_shape: `(height, width, channels)`, by default `(224, 224, 3)`. Height and width must be multiples of the
            stride, which is 32 with four stages. Channels are last, whatever Keras's global setting is.
        pooling: `"avg"`: the mean over the map, (B, D). `None`, with `include_top=False`: the map (B, h, w, D).
        weights: `None`, or the path of a `.weights.h5` file of a model of the same shape.
        include_top, input_tensor, classes, classifier_activation, include_preprocessing, name: As in
            `keras_vit.ViT`.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, classes), float32.

    Raises:
        ValueError: If a value is invalid or not available. The message lists accepted values.

    Example:

    >>> import keras_vit
    >>> arguments = {"stage_depths": (1, 1), "width": 12, "num_heads": 3}
    >>> keras_vit.AxialResNet(**arguments, classes=10, input_shape=(32, 48, 3)).output_shape
    (None, 10)
    """
    shared = SharedArguments(
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, include_preprocessing
    )
    config = AxialResNetConfig(stage_depths, width, num_heads)
    return resnet_with_weights(functools.partial(build_on_trunk, _trunk, name=name), config, shared)


def _trunk(images, config):
    """Computes the map (B, h, w, D) from normalised pixels (B, H, W, C)."""
    _check_size(images.shape[1:3], config.total_stride)
    channels_last = {"data_format": "channels_last"}
    maps = keras.layers.ZeroPadding2D(3, **channels_last, name="stem_margin")(images)
    maps = keras.layers.Conv2D(
        config.width,
        7,
        2,
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
        **channels_last,
        name="stem_conv",
    )(maps)
    maps = batch_norm(name="stem_norm")(maps)
    maps = keras.layers.ReLU(name="stem_activation")(maps)
    # The added zeros never change a maximum, because no value is below 0 after the ReLU.
    maps = keras.layers.ZeroPadding2D(1, **channels_last, name="stem_padding")(maps)
    maps = keras.layers.MaxPooling2D(3, 2, "valid", **channels_last, name="stem_pooling")(maps)
    for name, width, strides in stage_units(config.stage_depths, 2 * config.width):
        maps = layers.AxialBottleneckUnit(width, strides, config.num_heads, name=name)(maps)
    return maps


def _check_size(size, strides):
    if any(length is None or length % stride for length, stride in zip(size, strides, strict=True)):
        raise ValueError(
            f"An AxialResNet takes images of one size. Height and width must be multiples of {strides[0]} pixels. "
            f"Received: (height, width) = {tuple(size)}"
        )


AxialResNet50 = keras_application(
    lambda **options: AxialResNet((3, 4, 6, 3), 32, 8, **options),
    "AxialResNet50",
    "Builds an AxialResNet with the stages of ResNet-50, the paper's Axial-ResNet-S.",
    "keras_vit.AxialResNet((3, 4, 6, 3), 32, 8, ...)",
    AxialResNetConfig,
    model_name="axial_resnet_50",
)

__all__ = ["AxialResNet", "AxialResNet50"]
