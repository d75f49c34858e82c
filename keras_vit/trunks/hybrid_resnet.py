"""The ResNet of ViT's hybrid models."""

import keras

from keras_vit import layers
from keras_vit.layers.convolutional.bottleneck_unit import NUM_GROUPS


def hybrid_resnet(images, stem):
    """Computes the feature map that ViT's hybrid models divide into patches (arXiv 2010.11929, section 3.1).

    The ResNet has a stem (7 x 7 convolution with stride 2, GroupNorm, ReLU, 3 x 3 max pooling with stride 2) and stages
    of `BottleneckUnit`. In each stage except the first, the first unit halves the map. All padding is TensorFlow's
    "same", so images of any size are accepted. The network is the same as in `models_resnet.py` of
    google-research/vision_transformer.

    Args:
        images: Keras tensor (B, H, W, C) of normalised pixels.
        stem: `StemConfig`

    Returns:
        Keras tensor (B, h, w, D). h and w are H and W divided by `stem.stride` and rounded up. D is four times the
        width of the last stage. If there are no stages, D is `stem.width`.
    """
    maps = layers.StdConv2D(stem.width, 7, 2, stem.weight_standardization_epsilon, name="stem_conv")(images)
    maps = layers.GroupNormalization(NUM_GROUPS, epsilon=stem.group_norm_epsilon, name="stem_norm")(maps)
    maps = keras.layers.ReLU(name="stem_activation")(maps)
    maps = keras.layers.MaxPooling2D(3, 2, "same", data_format="channels_last", name="stem_pooling")(maps)
    for name, width, strides in stage_units(stem.stage_depths, stem.width):
        epsilons = (stem.group_norm_epsilon, stem.weight_standardization_epsilon)
        maps = layers.BottleneckUnit(width, strides, *epsilons, name=f"stem_{name}")(maps)
    return maps


def stage_units(stage_depths, width):
    """Yields (name, width, strides) of each unit of a ResNet, in the order of computation.

    Each stage is twice as wide as the stage before it. In each stage except the first, the first unit halves the map.
    """
    for stage, depth in enumerate(stage_depths):
        for unit in range(depth):
            yield f"stage_{stage}_unit_{unit}", width * 2**stage, 2 if stage > 0 and unit == 0 else 1
