"""Semantic segmentation: VT-FPN (arXiv 2006.03677) and its baseline, Panoptic FPN (arXiv 1901.02446)."""

import collections.abc
import dataclasses
import functools
import math
import os
import typing

import keras

from keras_vit import layers
from keras_vit.architectures import PANOPTIC_FPNS, VT_FPNS, ResNetConfig, changed_config
from keras_vit.checks import check_positive_integer
from keras_vit.models.building import SharedArguments, functional_model, image_inputs, prepare, resnet_with_weights
from keras_vit.trunks.resnet import resnet

_PUBLISHED = {"use_batch_norm": True, "scale_logits": True}
_TOKEN_GROUPS = 4  # Groups in the projections to keys, queries and values of tokens, as in VT-ResNets.
_NORM_GROUPS = 32  # Groups of the norms in the head, as in Detectron2.


def VTFPN(
    backbone: str | ResNetConfig = "R50",
    weights: str | os.PathLike | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    classes: int = 150,
    classifier_activation: str | collections.abc.Callable | None = "softmax",
    include_preprocessing: bool = False,
    name: str | None = None,
    **config_changes: typing.Any,
) -> keras.Model:
    """Builds a VT-FPN for semantic segmentation as a functional `keras.Model`.

    "Visual Transformers: Token-based Image Representation and Processing for Computer Vision" (arXiv 2006.03677,
    section 5.3). The map of each stage of a ResNet is pooled into 8 tokens. One transformer relates the tokens of all
    maps, and the tokens of each map are projected back onto that map. The token layers replace the top-down path and
    the 3 x 3 convolutions of a feature pyramid. The replaced layers have 6.4 times as many multiply-accumulates as the
    token layers. The head is the same as in `keras_vit.PanopticFPN`. The paper does not give the sizes of all layers.
    With the sizes that this package uses instead, the total number of operations differs from the paper's by at most
    0.7 % (docs/paper_map.md).

    The layers are named as in `keras_vit.ResNet`, then `lateral_{i}`, `tokenizer_{i}`, `token_embedding_{i}`, `tokens`,
    `token_transformer`, `tokens_{i}`, `token_projector_{i}`. The layers of the head are named as in
    `keras_vit.PanopticFPN`. i is the index of a map, 0 for the finest map.

    Args:
        backbone: `"R18"`, `"R34"`, `"R50"`, `"R101"`, a `keras_vit.architectures.ResNetConfig`, or a
            `keras_vit.architectures.VTFPNConfig`. With a string, `strides_first` is true, as in Detectron2.
        weights: `None`: newly initialised weights. The path of a `.weights.h5` file: weights that `model.save_weights`
            wrote for a model of the same shape. Published weights of a ResNet, as in `keras_vit.ResNet`: they are
            loaded into the backbone, and also define `strides_first`.
        input_tensor, input_shape, classes, classifier_activation, include_preprocessing, name: As in
            `keras_vit.ViT`.
        **config_changes: Any field of `keras_vit.architectures.VTFPNConfig`, including the backbone's fields.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, height, width, classes), float32.

    Raises:
        TypeError: If a name in `config_changes` is not a field of the config.
        ValueError: If a value is invalid or not available. The message lists accepted values.

    Example:

    >>> import keras_vit
    >>> changes = {"width": 8, "neck_dim": 32, "token_dim": 64, "num_heads": 4, "head_dim": 16}
    >>> model = keras_vit.VTFPN("R18", classes=5, input_shape=(64, 90, 3), **changes)
    >>> model.output_shape
    (None, 64, 90, 5)
    """
    config = changed_config(VT_FPNS, _segmentation_config(backbone, VT_FPNS), config_changes)
    shared = SharedArguments(
        True, weights, input_tensor, input_shape, None, classes, classifier_activation, include_preprocessing
    )
    return resnet_with_weights(functools.partial(_build, _token_neck, name=name), config, shared, ("strides_first",))


def PanopticFPN(
    backbone: str | ResNetConfig = "R50",
    weights: str | os.PathLike | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    classes: int = 150,
    classifier_activation: str | collections.abc.Callable | None = "softmax",
    include_preprocessing: bool = False,
    name: str | None = None,
    **config_changes: typing.Any,
) -> keras.Model:
    """Builds the semantic branch of a Panoptic FPN as a functional `keras.Model`.

    "Panoptic Feature Pyramid Networks" (arXiv 1901.02446, section 3.2), as in Detectron2. The maps of a ResNet's stages
    are projected to 256 channels. From coarse to fine, each map is upsampled and added to the next finer map. Then a
    3 x 3 convolution is applied to every map ("Feature Pyramid Networks for Object Detection", arXiv 1612.03144). In
    the head, 3 x 3 convolutions with group norm and ReLU alternate with bilinear upsampling until all maps have the
    size of the finest map. The maps are added, each pixel of the sum is classified, and the logits are upsampled
    by a factor of four. Unlike batch norm, group norm does not depend on the number of images on a device.

    The layers are named as in `keras_vit.ResNet`, then `lateral_{i}`, `top_down_{i}`, `merge_{i}`, `pyramid_{i}`,
    `head_{i}_conv_{k}`, `head_{i}_norm_{k}`, `head_{i}_activation_{k}`, `head_{i}_upsampling_{k}`, `head_sum`,
    `predictions`, `upsampling`, `probabilities`. i is the index of a map, 0 for the finest map, and k is the index of a
    convolution.

    Args:
        backbone: `"R18"`, `"R34"`, `"R50"`, `"R101"`, or a `ResNetConfig` or `PanopticFPNConfig` of
            `keras_vit.architectures`. With a string, `strides_first` is true, as in Detectron2.
        weights: As in `keras_vit.VTFPN`.
        input_tensor, input_shape, classes, classifier_activation, include_preprocessing, name: As in
            `keras_vit.ViT`.
        **config_changes: Any field of `keras_vit.architectures.PanopticFPNConfig`, including the backbone's fields.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, height, width, classes), float32.

    Raises:
        TypeError: If a name in `config_changes` is not a field of the config.
        ValueError: If a value is invalid or not available. The message lists accepted values.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.PanopticFPN("R18", classes=5, input_shape=(64, 90, 3), width=8, neck_dim=12, head_dim=10)
    >>> model.output_shape
    (None, 64, 90, 5)
    """
    config = changed_config(PANOPTIC_FPNS, _segmentation_config(backbone, PANOPTIC_FPNS), config_changes)
    shared = SharedArguments(
        True, weights, input_tensor, input_shape, None, classes, classifier_activation, include_preprocessing
    )
    return resnet_with_weights(functools.partial(_build, _pyramid_neck, name=name), config, shared, ("strides_first",))


def _segmentation_config(backbone, sizes):
    """Converts a `ResNetConfig` to the config of a segmentation model. Other values are returned unchanged."""
    kind = type(next(iter(sizes.values())))
    return kind(**dataclasses.asdict(backbone)) if type(backbone) is ResNetConfig else backbone


def _build(neck, config, shared, name):
    classes = check_positive_integer("classes", shared.classes)
    images = image_inputs(shared)
    pixels = prepare(images, config, shared.include_preprocessing)
    laterals = [
        _convolution(config.neck_dim, 1, "lecun_uniform", name=f"lateral_{level}")(maps)
        for level, maps in enumerate(resnet(pixels, config))
    ]
    maps = _head(neck(laterals, config), config)
    if config.dropout_rate > 0:
        maps = layers.Dropout(config.dropout_rate, name="dropout")(maps)
    logits = _convolution(classes, 1, "zeros", dtype="float32", name="predictions")(maps)
    logits = layers.UpsampleLike(4, dtype="float32", name="upsampling")(logits, pixels)
    outputs = keras.layers.Activation(shared.classifier_activation, dtype="float32", name="probabilities")(logits)
    return functional_model(images, outputs, name or config.kind)


def _convolution(filters, kernel_size, initializer, **arguments):
    return keras.layers.Conv2D(
        filters, kernel_size, padding="same", data_format="channels_last", kernel_initializer=initializer, **arguments
    )


def _pyramid_neck(laterals, config):
    """Returns the feature pyramid, maps with `neck_dim` channels, from fine to coarse (arXiv 1612.03144, figure 3)."""
    *finer, merged = laterals
    merged_maps = [merged]
    for level, lateral in reversed(list(enumerate(finer))):
        coarser = layers.UpsampleLike(2, "nearest", name=f"top_down_{level}")(merged, lateral)
        merged = keras.layers.Add(name=f"merge_{level}")([lateral, coarser])
        merged_maps.insert(0, merged)
    # The initializer is Caffe2's "Xavier", as in Detectron2. Its variance is 1 / fan-in.
    return [
        _convolution(config.neck_dim, 3, "lecun_uniform", name=f"pyramid_{level}")(maps)
        for level, maps in enumerate(merged_maps)
    ]


def _token_neck(laterals, config):
    """Returns maps of `neck_dim` channels that are related to each other by tokens (arXiv 2006.03677, figure 4)."""
    tokens = []
    for level, maps in enumerate(laterals):
        gathered = layers.FilterTokenizer(config.num_tokens, **_PUBLISHED, name=f"tokenizer_{level}")(maps)
        # This layer projects only the tokens. If the tokenizer got `token_dim` instead, it would also project every
        # pixel, and the number of operations would not agree with the paper.
        embed = layers.PointwiseConvolution(config.token_dim, use_batch_norm=True, name=f"token_embedding_{level}")
        tokens.append(embed(gathered))
    relate = layers.TokenTransformer(config.num_heads, _TOKEN_GROUPS, **_PUBLISHED, name="token_transformer")
    related = relate(keras.layers.Concatenate(axis=1, name="tokens")(tokens))
    projected = []
    for level, maps in enumerate(laterals):
        remaining = level * config.num_tokens, (len(laterals) - 1 - level) * config.num_tokens
        own = keras.layers.Cropping1D(remaining, name=f"tokens_{level}")(related)
        project = layers.TokenProjector(
            None, config.num_heads, config.group_width, **_PUBLISHED, name=f"token_projector_{level}"
        )
        projected.append(project(maps, own))
    return projected


def _head(pyramid, config):
    """Returns the sum of the upsampled maps, with `head_dim` channels (arXiv 1901.02446, figure 3)."""
    branches = []
    for level, maps in enumerate(pyramid):
        for number in range(max(level, 1)):
            prefix, suffix = f"head_{level}_", f"_{number}"
            maps = layers.PaddedConv2D(config.head_dim, 3, name=f"{prefix}conv{suffix}")(maps)
            groups = math.gcd(_NORM_GROUPS, config.head_dim)
            maps = layers.GroupNormalization(groups, epsilon=1e-5, name=f"{prefix}norm{suffix}")(maps)
            maps = keras.layers.ReLU(name=f"{prefix}activation{suffix}")(maps)
            if level > 0:
                maps = layers.UpsampleLike(2, name=f"{prefix}upsampling{suffix}")(maps, pyramid[level - 1 - number])
        branches.append(maps)
    return branches[0] if len(branches) == 1 else keras.layers.Add(name="head_sum")(branches)


__all__ = ["VTFPN", "PanopticFPN"]
