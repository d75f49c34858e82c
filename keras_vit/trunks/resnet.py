"""The ResNet in Visual Transformers, in their baselines and in the segmentation models."""

import keras

from keras_vit import layers
from keras_vit.layers.convolutional.parts import batch_norm
from keras_vit.trunks.hybrid_resnet import stage_units


def resnet(images, config):
    """Computes the feature maps of a ResNet (arXiv 1512.03385).

    The ResNet has a stem (7 x 7 convolution with stride 2, batch norm, ReLU, 3 x 3 max pooling with stride 2) and
    stages of `ResidualUnit`. In each stage except the first, the first unit halves the map. The padding is equal on
    both sides, as in torchvision. The layers are named `stem_conv`, `stem_norm`, `stem_activation`, `stem_pooling`,
    `stage_0_unit_0` and so on. The global unit (GloRe, A2-Net) after `stage_2_unit_0` is named `stage_2_global_unit_0`.

    Args:
        images: Keras tensor (B, H, W, C) of normalised pixels.
        config: `keras_vit.architectures.ResNetConfig`

    Returns:
        List of Keras tensors (B, h, w, D), one per stage. For the first stage, h and w are H and W divided by 4 and
        rounded up. Each later stage halves them.
    """
    maps = layers.PaddedConv2D(config.width, 7, 2, name="stem_conv")(images)
    maps = batch_norm(name="stem_norm")(maps)
    maps = keras.layers.ReLU(name="stem_activation")(maps)
    maps = layers.PaddedMaxPooling2D("ignored", name="stem_pooling")(maps)
    stage_maps = {}
    for number, (name, width, strides) in enumerate(stage_units(config.stage_depths, config.width)):
        stage, unit = (int(part) for part in name.removeprefix("stage_").split("_unit_"))
        rate = config.drop_path_rate * number / max(1, sum(config.stage_depths) - 1)
        mixing = _mixing(config, stage)
        maps = layers.ResidualUnit(
            width, strides, config.expansion, config.strides_first, rate, mixing, config.attention, name=name
        )(maps)
        if unit in _units_before_global_units(config, stage):
            maps = _global_unit(config.global_unit, maps.shape[-1], name.replace("unit", "global_unit"))(maps)
        stage_maps[stage] = maps
    return list(stage_maps.values())


def _mixing(config, stage):
    """Returns the argument `mixing` of the `ResidualUnit`s in a stage."""
    if config.mixing != "attention_augmented":
        return config.mixing
    # Maps of 56 x 56 pixels are too large for attention. Maps of 28 x 28 pixels are pooled before the attention.
    return {0: "convolution", 1: "pooled_attention_augmented"}.get(stage, config.mixing)


def _units_before_global_units(config, stage):
    """Returns the indices of those units of a stage that have a global unit after them."""
    count = config.num_global_units[stage] if config.global_unit else 0
    return {number * config.stage_depths[stage] // count for number in range(count)}


def _global_unit(kind, channels, name):
    """Creates a global unit with `channels / 2` states or features, as in the papers on GloRe and A2-Nets.

    A GloRe unit has `channels / 4` nodes.
    """
    if kind == "global_reasoning":
        return layers.GlobalReasoning(max(1, channels // 4), max(1, channels // 2), name=name)
    return layers.DoubleAttention(max(1, channels // 2), max(1, channels // 2), name=name)
