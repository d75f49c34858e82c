"""Models that predict pixels or objects: a plain Vision Transformer as encoder, and a head on its blocks."""

import collections.abc
import functools
import os
import typing

import keras
from keras import ops

from keras_vit import layers
from keras_vit.architectures.dense import DepthEstimatorConfig, DetectorConfig, SegmenterConfig
from keras_vit.architectures.vision_transformer import VARIANTS, ViTConfig
from keras_vit.checks import check_choice, check_positive_integer
from keras_vit.encoder import embed_patches, encode_patches, encoder_norm
from keras_vit.graph import calls
from keras_vit.heads import HEADS
from keras_vit.heads.classifier import classifier
from keras_vit.heads.dense_head import DenseHead, patch_map
from keras_vit.layers.convolutional.feature_fusion import small_kernel
from keras_vit.models.building import SharedArguments, checked_arguments, functional_model, image_inputs, prepare
from keras_vit.models.functional_vit import FunctionalViT
from keras_vit.models.vit import check_preprocessing
from keras_vit.weights.keras_files import checkpoint_of, open_model
from keras_vit.weights.loading import build_with_weights, check_kind
from keras_vit.weights.opening import open_checkpoint


def Segmenter(
    encoder: str | os.PathLike | ViTConfig | keras.Model = "B/16",
    head: str | DenseHead = "linear",
    classes: int = 150,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    classifier_activation: str | collections.abc.Callable | None = "softmax",
    include_preprocessing: bool = False,
    name: str | None = None,
) -> keras.Model:
    """Builds a segmentation model from a Vision Transformer and a head, as a functional `keras.Model`.

    The layers of the encoder are named as in `keras_vit.ViT`. Then come the layers `head`, `predictions`, and for the
    classes of pixels `upsampling` and `probabilities`.

    Args:
        encoder: A variant such as `"S/16"` or a `ViTConfig`: the encoder is newly initialised. A name in the catalogue,
            a path or an address, as in `keras_vit.from_pretrained`: published weights, or a `.keras` file. A
            `keras.Model` of this package: its weights are copied.
        head: `"linear"`, `"dpt"`, `"eomt"`, or a layer of `keras_vit.heads` with other arguments.
        classes: Number of classes.
        input_tensor, input_shape, include_preprocessing, name: As in `keras_vit.ViT`. The default of `input_shape` is
            that of the encoder.
        classifier_activation: Activation of the classes of pixels. An EoMT head always returns logits.

    Returns:
        A `keras.Model`. Input (B, height, width, channels). Output: scores of the classes of each pixel, (B, height,
        width, classes), float32. With an EoMT head of Q queries, a dictionary of logits: `masks`, (B, h, w, Q), and
        `objects`, (B, Q, classes + 1), where the last class means that there is no object.

    Raises:
        TypeError: If `encoder` has another type.
        ValueError: If a value is invalid or not available, or if weights do not fit.

    Example:

    >>> import keras_vit
    >>> head = keras_vit.heads.DPTHead(features=32)
    >>> model = keras_vit.Segmenter("Ti/16", head, classes=5, input_shape=(64, 96, 3))
    >>> model.output_shape
    (None, 64, 96, 5)
    """
    shared = SharedArguments(
        True, None, input_tensor, input_shape, None, classes, classifier_activation, include_preprocessing
    )
    return _on_encoder(encoder, head, SegmenterConfig, {}, shared, name)


def DepthEstimator(
    encoder: str | os.PathLike | ViTConfig | keras.Model = "B/16",
    head: str | DenseHead = "dpt",
    max_depth: float | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    include_preprocessing: bool = False,
    name: str | None = None,
    **config_changes: typing.Any,
) -> keras.Model:
    """Builds a model that estimates the depth of each pixel, as a functional `keras.Model`.

    The layers of the encoder are named as in `keras_vit.ViT`. Then come the layers `head`, `predictions`, `depth` and
    `upsampling`.

    Args:
        encoder: As in `keras_vit.Segmenter`.
        head: `"dpt"`, `"linear"`, or a layer of `keras_vit.heads` with other arguments.
        max_depth: Largest depth in metres: the output is a sigmoid times this number. `None`: the depth is positive,
            without a limit, and its unit is that of the training data.
        input_tensor, input_shape, include_preprocessing, name: As in `keras_vit.Segmenter`.
        **config_changes: Any other field of `keras_vit.architectures.DepthEstimatorConfig` after `head`.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, height, width, 1), float32.

    Raises:
        TypeError: If `encoder` has another type.
        ValueError: If a value is invalid or not available, or if weights do not fit.

    Example:

    >>> import keras_vit
    >>> head = keras_vit.heads.DPTHead(features=32)
    >>> model = keras_vit.DepthEstimator("Ti/16", head, max_depth=10.0, input_shape=(64, 96, 3))
    >>> model.output_shape
    (None, 64, 96, 1)
    """
    if max_depth is not None:
        config_changes = {"activation": "sigmoid", "max_depth": max_depth, **config_changes}
    shared = SharedArguments(True, None, input_tensor, input_shape, None, include_preprocessing=include_preprocessing)
    return _on_encoder(encoder, head, DepthEstimatorConfig, config_changes, shared, name)


def Detector(
    encoder: str | os.PathLike | ViTConfig | keras.Model = "B/16",
    head: str | DenseHead = "box",
    classes: int = 80,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    include_preprocessing: bool = False,
    name: str | None = None,
) -> keras.Model:
    """Builds a model that predicts boxes and the classes of what they contain, as a functional `keras.Model`.

    The layers of the encoder are named as in `keras_vit.ViT`. Then come the layers `head`, `predictions`, `head_boxes`
    and `boxes`.

    Args:
        encoder: As in `keras_vit.Segmenter`.
        head: `"box"`: a box of each patch (OWL-ViT). `"detection_tokens"`: boxes of learned tokens (YOLOS). Or a layer
            of `keras_vit.heads` with other arguments.
        classes: Number of classes.
        input_tensor, input_shape, include_preprocessing, name: As in `keras_vit.Segmenter`.

    Returns:
        A `keras.Model`. Input (B, height, width, channels). Output: a dictionary.

        * `boxes`, float32 (B, N, 4): centre x, centre y, width and height of N boxes, as shares of the image.
        * `objects`, float32 (B, N, classes): logits of classes, each of which may be present or not. With detection
          tokens, (B, N, classes + 1): logits of classes that exclude each other. The last one means that there is no
          object.

    Raises:
        TypeError: If `encoder` has another type.
        ValueError: If a value is invalid or not available, or if weights do not fit.

    Example:

    >>> import keras_vit
    >>> head = keras_vit.heads.DetectionTokens(num_tokens=20)
    >>> model = keras_vit.Detector("Ti/16", head, classes=5, input_shape=(64, 96, 3))
    >>> {name: tensor.shape for name, tensor in model.output.items()}
    {'boxes': (None, 20, 4), 'objects': (None, 20, 6)}
    """
    shared = SharedArguments(True, None, input_tensor, input_shape, None, classes, None, include_preprocessing)
    return _on_encoder(encoder, head, DetectorConfig, {}, shared, name)


def _on_encoder(encoder, head, config_class, fields, shared, name):
    """Builds a model with a new head on an encoder, which is new or has weights."""
    shared = SharedArguments(**checked_arguments(vars(shared)))
    head = _checked_head(head, config_class)
    if not isinstance(encoder, str | os.PathLike | ViTConfig | keras.Model):
        raise TypeError(
            f"encoder must be a variant such as 'B/16', a ViTConfig, the name, path or address of weights, or a "
            f"keras.Model. Received: {encoder!r}"
        )
    if isinstance(encoder, ViTConfig) or encoder in VARIANTS:
        config = _with_head(VARIANTS.get(encoder, encoder), head, config_class, fields)
        return build_model(config, shared, name)
    if isinstance(encoder, keras.Model):
        checkpoint = checkpoint_of(encoder)
    else:
        checkpoint = open_model(encoder)[1] if str(encoder).endswith(".keras") else open_checkpoint(encoder)
    check_kind(checkpoint, ViTConfig)
    check_preprocessing(checkpoint)
    config = _with_head(checkpoint.config, head, config_class, fields)
    if shared.input_tensor is None and shared.input_shape is None:
        shape = (*checkpoint.image_size, checkpoint.channels)
        shared = SharedArguments(**vars(shared) | {"input_shape": shape})
    build = functools.partial(build_model, config, shared, name, checkpoint.grid_size)
    return build_with_weights(build, checkpoint, "reset")


def _checked_head(head, config_class):
    accepted = {name: HEADS[name] for name in config_class.HEADS}
    if isinstance(head, str):
        return accepted[check_choice(f"head of a {config_class.title}", head, accepted)]()
    if type(head) not in accepted.values():
        classes = ", ".join(each.__name__ for each in accepted.values())
        raise ValueError(
            f"The head of a {config_class.title} must be one of {', '.join(map(repr, accepted))}, or one of these "
            f"layers of keras_vit.heads: {classes}. Received: {head!r}"
        )
    return head


def _with_head(encoder, head, config_class, fields):
    name = next(name for name, kind in HEADS.items() if type(head) is kind)
    taken = head.for_encoder(encoder)
    if encoder.final_norm is False and not head.use_norm:
        fields = {"final_norm": False, **fields}
    return config_class.of_encoder(encoder, head={"name": name, **taken.arguments}, **fields)


def build_model(config, shared, name=None, grid_size=None):
    """Builds a newly initialised model for `SharedArguments`. `grid_size` is as in `encode`."""
    arguments = dict(config.head)
    head = HEADS[arguments.pop("name")](**arguments, name="head").for_encoder(config)
    inputs = image_inputs(shared)
    images = prepare(inputs, config, shared.include_preprocessing)
    patches = embed_patches(images, config)
    outputs = encode_patches(patches, config, grid_size, num_blocks=max(head.taps) + 1)
    taps = [outputs[tap + 1][0] for tap in head.taps]
    if head.use_norm:
        taps = list(map(encoder_norm(config), taps))
    features = head(patches, taps, images)
    outputs = _FINISH[config.output](features, patches, images, config, shared)
    return functional_model(inputs, outputs, name or config.kind, FunctionalViT)


def encoder_and_head(model):
    """Divides a model of this module in two. Both parts share its layers.

    Args:
        model: Model of `build_model` with a fixed image size.

    Returns:
        * The encoder, a `keras.Model` from images to the inputs of the head: {name: tokens (B, T, D)}.
        * A `keras.Model` from these inputs to the outputs of `model`.
    """
    [call] = [node for node in calls(model) if node.operation is model.get_layer("head")]
    patches, taps, images = call.arguments.args
    encoder = keras.Model(model.input, {f"tap_{i}": tokens for i, tokens in enumerate(taps)})
    inputs = {name: keras.Input(tokens.shape[1:], name=name) for name, tokens in encoder.output.items()}
    after = keras.Model([patches, *taps, images], model.output)
    # Only the sizes of the patches and of the images are used.
    grid = patch_map(inputs["tap_0"], patches)
    outputs = after([grid, *inputs.values(), ops.zeros((1, *images.shape[1:]))])
    return encoder, keras.Model(inputs, outputs)


def _classify(features, patches, images, config, shared):
    classes = check_positive_integer("classes", shared.classes)
    if config.has_queries:
        masks, queries = features
        objects = classifier("predictions", classes + 1, None)(queries)
        return {"masks": keras.layers.Activation("linear", dtype="float32", name="masks")(masks), "objects": objects}
    logits = classifier("predictions", classes, None)(features)
    logits = layers.ResizeLike(dtype="float32", name="upsampling")(logits, images)
    return keras.layers.Activation(shared.classifier_activation, dtype="float32", name="probabilities")(logits)


def _estimate_depth(features, patches, images, config, shared):
    outputs = _last_layers(features, config, "", config.num_bins)
    if config.upsampling > 1:
        enlarge = layers.ResizeLike(config.upsampling, dtype="float32", name="output_upsampling")
        outputs = enlarge(outputs, outputs)
    sky = [_last_layers(features, config, "sky_", 1)] if config.has_sky else []
    activation = layers.DepthActivation(
        config.activation, config.offset, config.min_depth, config.max_depth, dtype="float32", name="depth"
    )
    depth = activation(outputs, *sky)
    if config.head.get("output") == "image" and config.upsampling == 1:  # It has the size of the image.
        return depth
    return layers.ResizeLike(dtype="float32", name="upsampling")(depth, images)


def _last_layers(features, config, prefix, num_outputs):
    """The convolution of `output_dim` channels, if any, and the last layer."""
    if config.output_dim is not None:
        options = {"padding": "same", "data_format": "channels_last", "kernel_initializer": small_kernel()}
        options |= {"activation": "relu"}
        features = keras.layers.Conv2D(config.output_dim, 3, name=f"head_{prefix}output", **options)(features)
    return keras.layers.Dense(
        num_outputs, kernel_initializer=small_kernel(), dtype="float32", name=f"{prefix}predictions"
    )(features)


def _estimate_normals(features, patches, images, config, shared):
    normals = keras.layers.Dense(3, dtype="float32", name="predictions")(features)
    normals = keras.layers.UnitNormalization(dtype="float32", name="unit")(normals)
    return layers.ResizeLike(dtype="float32", name="upsampling")(normals, images)


def _detect(features, patches, images, config, shared):
    if shared.classes is None:
        raise ValueError(
            "The classes of this detector are texts. Call ImageTextModel.from_pretrained(source).detector(names), or "
            "pass classes= for a detector with new classes."
        )
    classes = check_positive_integer("classes", shared.classes)
    if config.has_detection_tokens:
        class_features, box_features = features
        logits = keras.layers.Dense(4, dtype="float32", name="head_boxes")(box_features)
        boxes = keras.layers.Activation("sigmoid", dtype="float32", name="boxes")(logits)
        return {"boxes": boxes, "objects": classifier("predictions", classes + 1, None)(class_features)}
    embeddings, scores, box_features, *_ = features
    logits = keras.layers.Dense(4, kernel_initializer="zeros", dtype="float32", name="head_boxes")(box_features)
    boxes = layers.PatchBoxes(name="boxes")(logits, patches)
    return {"boxes": boxes, "objects": layers.LabelSimilarity(classes, name="predictions")(embeddings, scores)}


_FINISH = {"class_map": _classify, "depth": _estimate_depth, "normals": _estimate_normals, "objects": _detect}
"""{kind of output of a config: function that adds the last layers}"""
__all__ = ["DepthEstimator", "Detector", "Segmenter"]
