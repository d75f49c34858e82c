"""BiT-ResNets, the convolutional baselines of ViT (arXiv 2010.11929, section 4.1).

Paper: "Big Transfer (BiT)" (arXiv 1912.11370). Depths and widths are from `get_block_desc` of
google-research/big_vision.
"""

import collections.abc
import functools
import os

import keras

from keras_vit import layers
from keras_vit.architectures import BiTResNetConfig
from keras_vit.layers.convolutional.bottleneck_unit import NUM_GROUPS
from keras_vit.layers.convolutional.pre_activation_unit import GROUP_NORM_EPSILON, bit_conv
from keras_vit.models.building import SharedArguments, build_on_trunk, resnet_with_weights
from keras_vit.models.factories import keras_application
from keras_vit.trunks.hybrid_resnet import stage_units


def BiTResNet(
    stage_depths: tuple[int, ...] = (3, 4, 6, 3),
    width: int = 64,
    stem_pooling_padding: str | None = None,
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
    """Builds a BiT-ResNet as a functional `keras.Model`.

    BiT-ResNets are from "Big Transfer (BiT): General Visual Representation Learning" (arXiv 1912.11370). They are the
    baseline of ViT (arXiv 2010.11929). A BiT-ResNet is a ResNet-V2 with standardised convolutions, and with GroupNorm
    (32 groups) instead of batch norm. The output for an image therefore does not depend on the other images in the
    batch. Numerics and padding are those of the authors' code. The units are `keras_vit.layers.PreActivationUnit`. The
    stem has no norm. After the last unit, GroupNorm and ReLU are applied before the pooling. The classifier starts at
    zero. The layers are named `preprocessing`, `stem_conv`, `stem_pooling`, `stage_0_unit_0` and so on, `final_norm`,
    `final_activation`, `pooling`, `predictions`.

    Args:
        stage_depths: Number of units in each stage: `(3, 4, 6, 3)` in a model of 50 layers, `(3, 4, 23, 3)` for 101
            layers, `(3, 8, 36, 3)` for 152, `(3, 24, 36, 3)` for 200.
        width: Channels of the stem, a multiple of 32. In published models, it is 64 times the last number of the name
            (192 for BiTResNet50x3). Stage s has `4 * width * 2**s` output channels.
        stem_pooling_padding: Padding of the stem's max-pooling. `"zeros"`: zeros, as in BiT's training and in timm.
            `"ignored"`: the padding is never the maximum, as in big_vision and in its weight files. `None`: the padding
            of published weights if these are loaded, otherwise zeros.
        weights: `None`: newly initialised weights. The path of a `.weights.h5` file: weights that `model.save_weights`
            wrote for a model of the same shape. Any other path or address: published weights of the same size, such as
            `"hf://timm/resnetv2_50x1_bit.goog_in21k_ft_in1k"` or `"gs://bit_models/BiT-M-R50x1-ILSVRC2012.npz"`.
        pooling: `"avg"`: the mean over the map, (B, D). `None`, with `include_top=False`: the map (B, h, w, D). h
            and w are the image's height and width divided by the stride (32 with four stages) and rounded up.
        include_top, input_tensor, input_shape, classes, classifier_activation, include_preprocessing, name: As in
            `keras_vit.ViT`.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, classes), float32.

    Raises:
        ValueError: If a value is invalid or not available, or if weights do not fit. The message lists accepted values.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.BiTResNet(stage_depths=(1, 1), width=32, classes=10, input_shape=(64, 96, 3))
    >>> model.output_shape
    (None, 10)
    """
    shared = SharedArguments(
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, include_preprocessing
    )
    config = BiTResNetConfig(stage_depths, width, "zeros" if stem_pooling_padding is None else stem_pooling_padding)
    inherited = ("stem_pooling_padding",) if stem_pooling_padding is None else ()
    return resnet_with_weights(functools.partial(build_on_trunk, trunk, name=name), config, shared, inherited)


def trunk(images, config):
    """Computes the map (B, h, w, D) from normalised pixels (B, H, W, C)."""
    maps = bit_conv(config.width, 7, 2, name="stem_conv")(images)
    maps = layers.PaddedMaxPooling2D(config.stem_pooling_padding, name="stem_pooling")(maps)
    for name, width, strides in stage_units(config.stage_depths, config.width):
        maps = layers.PreActivationUnit(width, strides, name=name)(maps)
    maps = layers.GroupNormalization(NUM_GROUPS, epsilon=GROUP_NORM_EPSILON, name="final_norm")(maps)
    return keras.layers.ReLU(name="final_activation")(maps)


_STAGE_DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}


def _published(depth, width_factor):
    arguments = _STAGE_DEPTHS[depth], 64 * width_factor
    return keras_application(
        lambda **options: BiTResNet(*arguments, **options),
        f"BiTResNet{depth}x{width_factor}",
        f"Builds a BiT-ResNet with {depth} layers, {width_factor} times as wide as a ResNet.",
        f"keras_vit.BiTResNet({arguments[0]}, {arguments[1]}, ...)",
        BiTResNetConfig,
        model_name=f"bit_resnet_{depth}x{width_factor}",
    )


BiTResNet50x1 = _published(50, 1)
BiTResNet50x2 = _published(50, 2)
BiTResNet50x3 = _published(50, 3)
BiTResNet101x1 = _published(101, 1)
BiTResNet101x3 = _published(101, 3)
BiTResNet152x1 = _published(152, 1)
BiTResNet152x2 = _published(152, 2)
BiTResNet152x4 = _published(152, 4)
BiTResNet200x3 = _published(200, 3)

__all__ = [
    "BiTResNet",
    "BiTResNet50x1",
    "BiTResNet50x2",
    "BiTResNet50x3",
    "BiTResNet101x1",
    "BiTResNet101x3",
    "BiTResNet152x1",
    "BiTResNet152x2",
    "BiTResNet152x4",
    "BiTResNet200x3",
]
