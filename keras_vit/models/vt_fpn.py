"""Models for semantic segmentation: VT-FPN (arXiv 2006.03677) and the Panoptic FPN it is compared with (1901.02446)."""

import dataclasses
import functools
import math

import keras

from keras_vit import layers
from keras_vit.architectures import PANOPTIC_FPNS, VT_FPNS, ResNetConfig, changed_config
from keras_vit.checks import check_positive_integer
from keras_vit.models.building import functional_model, image_inputs, prepare, resnet_with_weights
from keras_vit.trunks.resnet import resnet

_TOKEN_GROUPS = 4  # Of keys, queries and values of tokens, as in VT-ResNets.
_NORM_GROUPS = 32  # Of the norms in the head, as in Detectron2.


def VTFPN(
    backbone="R50",
    weights=None,
    input_tensor=None,
    input_shape=None,
    classes=150,
    classifier_activation="softmax",
    include_preprocessing=False,
    name=None,
    **config_changes,
):
    """Builds a VT-FPN, which says of each pixel what it belongs to, as a functional `keras.Model`.

    "Visual Transformers: Token-based Image Representation and Processing for Computer Vision" (arXiv 2006.03677,
    section 5.3): from the map of each stage of a ResNet 8 tokens are gathered, one transformer relates the tokens of
    all maps, and those of each map are projected back onto it. That takes the place of the top-down path and the
    3 x 3 convolutions of a feature pyramid, whose multiply-accumulates are 6.4 times as many. The head is that of
    `keras_vit.PanopticFPN`. The paper prints operations and not every size; those here add up to its totals within
    0.7 % (docs/paper_map.md).

    The layers are named as those of `keras_vit.ResNet`, then, i from 0 for each map, the finest first, `lateral_{i}`,
    `tokenizer_{i}`, `token_embedding_{i}`, once `tokens` and `token_transformer`, `tokens_{i}`, `token_projector_{i}`,
    then those of the head.

    Args:
        backbone: `"R18"`, `"R34"`, `"R50"` or `"R101"`, with the strides of a bottleneck in its first convolution as in
            Detectron2; a `keras_vit.architectures.ResNetConfig`, which says that itself; or a
            `keras_vit.architectures.VTFPNConfig`.
        weights: `None` for freshly initialised weights; the path of a `.weights.h5` file that `model.save_weights`
            wrote for a model of the same shape; or the published weights of a ResNet for the backbone, as
            `keras_vit.ResNet` takes them, which also say where the strides of a bottleneck are.
        input_tensor: Keras tensor to use as the model's input.
        input_shape: `(height, width, channels)`, by default `(224, 224, 3)`; channels last whatever the global setting.
            Any height and width will do, multiples of 32 waste nothing. `None` for both makes a model for images of any
            size.
        classes: Number of classes, at least 1.
        classifier_activation: What makes probabilities of the logits of a pixel: `"softmax"`, `None` for logits, or any
            activation of Keras.
        include_preprocessing: `True`: the model takes pixels in [0, 255] and normalises them inside. `False`: it takes
            what `keras_vit.preprocess_input` returns.
        name: The model's name.
        **config_changes: Any field of `keras_vit.architectures.VTFPNConfig`, also those of the backbone.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, height, width, classes), float32.

    Raises:
        TypeError: If a name in `config_changes` is not a field of the config.
        ValueError: If a value is impossible or not available; the message says what is accepted.

    Example:

    >>> import keras_vit
    >>> changes = {"width": 8, "neck_dim": 32, "token_dim": 64, "num_heads": 4, "head_dim": 16}
    >>> model = keras_vit.VTFPN("R18", classes=5, input_shape=(64, 90, 3), **changes)
    >>> model.output_shape
    (None, 64, 90, 5)
    """
    config = changed_config(VT_FPNS, _of_segmentation(backbone, VT_FPNS), config_changes)
    arguments = {
        "input_tensor": input_tensor,
        "input_shape": input_shape,
        "classes": classes,
        "classifier_activation": classifier_activation,
        "include_preprocessing": include_preprocessing,
        "name": name,
    }
    return resnet_with_weights(functools.partial(_build, _token_neck), config, weights, arguments, ["strides_first"])


def PanopticFPN(
    backbone="R50",
    weights=None,
    input_tensor=None,
    input_shape=None,
    classes=150,
    classifier_activation="softmax",
    include_preprocessing=False,
    name=None,
    **config_changes,
):
    """Builds the semantic branch of a Panoptic FPN, which says of each pixel what it belongs to.

    "Panoptic Feature Pyramid Networks" (arXiv 1901.02446, section 3.2), as Detectron2 has it: the maps of a ResNet's
    stages are brought to 256 channels, to each is added the one below it, enlarged, and a 3 x 3 convolution follows
    ("Feature Pyramid Networks for Object Detection", arXiv 1612.03144). In the head 3 x 3 convolutions, each with group
    norm and ReLU, alternate with bilinear enlargements until all maps have the size of the finest; their sum is
    classified, and the logits are enlarged four times. The norms are group norms as there, so that they do not depend
    on how many images a device sees, which are few here.

    The layers are named as those of `keras_vit.ResNet`, then, i from 0 for each map, the finest first, `lateral_{i}`,
    `top_down_{i}`, `merge_{i}`, `pyramid_{i}`, then, k from 0 for each convolution, `head_{i}_conv_{k}`,
    `head_{i}_norm_{k}`, `head_{i}_activation_{k}`, `head_{i}_upsampling_{k}`, and `head_sum`, `predictions`,
    `upsampling`, `probabilities`.

    Args:
        backbone: `"R18"`, `"R34"`, `"R50"` or `"R101"`, with the strides of a bottleneck in its first convolution as in
            Detectron2; a `keras_vit.architectures.ResNetConfig`, which says that itself; or a
            `keras_vit.architectures.PanopticFPNConfig`.
        weights: As of `keras_vit.VTFPN`.
        input_tensor: As of `keras_vit.VTFPN`.
        input_shape: As of `keras_vit.VTFPN`.
        classes: As of `keras_vit.VTFPN`.
        classifier_activation: As of `keras_vit.VTFPN`.
        include_preprocessing: As of `keras_vit.VTFPN`.
        name: The model's name.
        **config_changes: Any field of `keras_vit.architectures.PanopticFPNConfig`, also those of the backbone.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, height, width, classes), float32.

    Raises:
        TypeError: If a name in `config_changes` is not a field of the config.
        ValueError: If a value is impossible or not available; the message says what is accepted.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.PanopticFPN("R18", classes=5, input_shape=(64, 90, 3), width=8, neck_dim=12, head_dim=10)
    >>> model.output_shape
    (None, 64, 90, 5)
    """
    config = changed_config(PANOPTIC_FPNS, _of_segmentation(backbone, PANOPTIC_FPNS), config_changes)
    arguments = {
        "input_tensor": input_tensor,
        "input_shape": input_shape,
        "classes": classes,
        "classifier_activation": classifier_activation,
        "include_preprocessing": include_preprocessing,
        "name": name,
    }
    return resnet_with_weights(functools.partial(_build, _pyramid_neck), config, weights, arguments, ["strides_first"])


def _of_segmentation(backbone, sizes):
    """A config of the kind of `sizes` with a plain ResNet as its backbone; anything else as it is."""
    kind = type(next(iter(sizes.values())))
    return kind(**dataclasses.asdict(backbone)) if type(backbone) is ResNetConfig else backbone


def _build(neck, config, input_tensor, input_shape, classes, classifier_activation, include_preprocessing, name):
    classes = check_positive_integer("classes", classes)
    images = image_inputs(input_tensor, input_shape)
    pixels = prepare(images, config, include_preprocessing)
    laterals = [
        _convolution(config.neck_dim, 1, "lecun_uniform", name=f"lateral_{level}")(maps)
        for level, maps in enumerate(resnet(pixels, config))
    ]
    maps = _head(neck(laterals, config), config)
    if config.dropout_rate > 0:
        maps = layers.Dropout(config.dropout_rate, name="dropout")(maps)
    logits = _convolution(classes, 1, "zeros", dtype="float32", name="predictions")(maps)
    logits = layers.UpsampleLike(4, dtype="float32", name="upsampling")(logits, pixels)
    outputs = keras.layers.Activation(classifier_activation, dtype="float32", name="probabilities")(logits)
    return functional_model(images, outputs, name or config.kind)


def _convolution(filters, kernel_size, initializer, **arguments):
    """With a bias, for what no norm follows."""
    return keras.layers.Conv2D(
        filters,
        kernel_size,
        padding="same",
        data_format="channels_last",
        kernel_initializer=initializer,
        **arguments,
    )


def _pyramid_neck(laterals, config):
    """Maps of `neck_dim` channels, the finest first, to as many that know of all coarser (1612.03144, figure 3)."""
    *finer, merged = laterals
    found = [merged]
    for level, lateral in reversed(list(enumerate(finer))):
        coarser = layers.UpsampleLike(2, "nearest", name=f"top_down_{level}")(merged, lateral)
        merged = keras.layers.Add(name=f"merge_{level}")([lateral, coarser])
        found.insert(0, merged)
    # Caffe2's "Xavier", as in Detectron2: of variance 1 / fan-in.
    return [
        _convolution(config.neck_dim, 3, "lecun_uniform", name=f"pyramid_{level}")(maps)
        for level, maps in enumerate(found)
    ]


def _token_neck(laterals, config):
    """Maps of `neck_dim` channels to as many that know of each other by tokens (arXiv 2006.03677, figure 4)."""
    tokens = []
    for level, maps in enumerate(laterals):
        gathered = layers.FilterTokenizer(
            config.num_tokens, use_batch_norm=True, scale_logits=True, name=f"tokenizer_{level}"
        )(maps)
        # Not the tokenizer's own projection, which would project every pixel before, too: the printed counts say no.
        embed = layers.PointwiseConvolution(config.token_dim, use_batch_norm=True, name=f"token_embedding_{level}")
        tokens.append(embed(gathered))
    related = layers.TokenTransformer(
        config.num_heads, _TOKEN_GROUPS, use_batch_norm=True, scale_logits=True, name="token_transformer"
    )(keras.layers.Concatenate(axis=1, name="tokens")(tokens))
    found = []
    for level, maps in enumerate(laterals):
        others = level * config.num_tokens, (len(laterals) - 1 - level) * config.num_tokens
        own = keras.layers.Cropping1D(others, name=f"tokens_{level}")(related)
        project = layers.TokenProjector(
            None,
            config.num_heads,
            config.group_width,
            use_batch_norm=True,
            scale_logits=True,
            name=f"token_projector_{level}",
        )
        found.append(project(maps, own))
    return found


def _head(pyramid, config):
    """Maps, the finest first, to one of `head_dim` channels at the size of the finest (arXiv 1901.02446, figure 3)."""
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
