"""Functions that all factories share. They create inputs, `preprocessing` layers and models, and load weights."""

import collections.abc
import dataclasses
import functools
import os
import typing

import keras

from keras_vit.checks import MAX_SIDE, check_flag, check_positive_integer, check_size, shown
from keras_vit.encoder import DEFAULT_IMAGE_SIZE
from keras_vit.heads.classifier import classifier
from keras_vit.layers import Dropout
from keras_vit.preprocessing import Preprocessing
from keras_vit.weights.formats.expressible import check_published
from keras_vit.weights.loading import build_with_weights, check_kind
from keras_vit.weights.opening import open_checkpoint


@dataclasses.dataclass(frozen=True)
class SharedArguments:
    """The arguments that all factories have, except `name`. `keras_vit.ViT` describes them.

    Models without a `pooling` or an `include_top` ignore them.
    """

    include_top: bool = True
    weights: str | os.PathLike | None = None
    input_tensor: keras.KerasTensor | None = None
    input_shape: tuple[int | None, int | None, int] | None = None
    pooling: str | None = "avg"
    classes: int = 1000
    classifier_activation: str | collections.abc.Callable | None = "softmax"
    include_preprocessing: bool = False


def image_inputs(shared):
    """Returns the Keras tensor of a model's images, (B, H, W, C), for `SharedArguments`."""
    input_tensor, input_shape = shared.input_tensor, shared.input_shape
    if input_tensor is None:
        return keras.Input(input_shape or (DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE, 3), name="images")
    if not isinstance(input_tensor, keras.KerasTensor):
        raise ValueError(f"input_tensor must be a Keras tensor, as keras.Input returns. Received: {input_tensor!r}")
    if len(input_tensor.shape) != 4 or input_tensor.shape[3] is None:
        raise ValueError(
            f"input_tensor must be of shape (B, H, W, C), with C known. Received: shape {input_tensor.shape}"
        )
    if input_shape is not None and tuple(input_shape) != tuple(input_tensor.shape[1:]):
        raise ValueError(
            f"input_shape and input_tensor differ. Pass one of them. Received: input_shape={tuple(input_shape)}, "
            f"input_tensor of shape {input_tensor.shape}"
        )
    return input_tensor


def checked_arguments(arguments, weights=None):
    """Checks the arguments of a factory before anything is downloaded or built.

    Args:
        arguments: {name: value}
        weights: As in `keras_vit.ViT`.

    Returns:
        The arguments, with plain integers in `input_shape`.

    Raises:
        ValueError: If one of the arguments, or `weights`, is invalid.
    """
    include_top, input_shape = arguments.get("include_top", True), arguments.get("input_shape")
    if isinstance(include_top, (str, os.PathLike)):
        raise ValueError(
            f"include_top must be True or False. Received: {include_top!r}. Did you mean weights={include_top!r}?"
        )
    check_flag("include_top", include_top)
    check_flag("include_preprocessing", arguments.get("include_preprocessing", False))
    if not (weights is None or isinstance(weights, (str, os.PathLike))):
        raise ValueError(
            f"weights must be None, a name of the catalogue such as 'imagenet', a path or an address. Received: "
            f"{shown(weights)}"
        )
    if weights is not None and is_weights_h5(weights) and not os.path.isfile(os.path.expanduser(weights)):
        raise ValueError(f"weights={os.fspath(weights)!r}: there is no such file.")
    return arguments if input_shape is None else {**arguments, "input_shape": _checked_shape(input_shape)}


def _checked_shape(input_shape):
    if not isinstance(input_shape, (tuple, list)) or len(input_shape) != 3 or input_shape[-1] is None:
        raise ValueError(
            f"input_shape must be (height, width, channels), where height and width may be None. Received: "
            f"{input_shape!r}"
        )
    shape = tuple(size if size is None else check_size("input_shape", size, MAX_SIDE) for size in input_shape)
    channels, *size = shape
    if channels in (1, 3) and all(side is not None and side > _MOST_CHANNELS for side in size):
        raise ValueError(
            f"input_shape must be (height, width, channels). Received: {shape}. Did you mean {(*size, channels)}?"
        )
    return shape


_MOST_CHANNELS = 16
"""If the first size of a shape is 1 or 3, and both others exceed this number, it is probably channels-first."""


def image_size(input_shape):
    """Returns (height, width) of an input shape, or `None` if they are unknown."""
    is_known = isinstance(input_shape, (tuple, list)) and len(input_shape) == 3 and None not in input_shape
    return tuple(input_shape[:2]) if is_known else None


def prepare(inputs, config, include_preprocessing):
    """Applies the `preprocessing` layer to images. The layer's config contains the model's architecture."""
    _, height, width, _ = inputs.shape
    return Preprocessing(
        resize=None if height is None or width is None else (height, width),
        architecture=config.to_dict(),
        normalize=include_preprocessing,
        name="preprocessing",
    )(inputs)


def functional_model(inputs, outputs, name, kind=keras.Model):
    """Builds the functional model of `outputs`. Its inputs are the `keras.Input`s from which `inputs` were computed."""
    sources = keras.utils.get_source_inputs(inputs)
    # With a list of one input, Keras would expect a list in each call.
    return kind(sources[0] if len(sources) == 1 else sources, outputs, name=name)


def is_weights_h5(weights: typing.Any) -> bool:
    """Whether weights are a `.weights.h5` file, which Keras loads into models of the same shape."""
    return str(weights).endswith(".weights.h5")


def check_weights_h5(weights, config):
    """Checks that weights are `None` or a `.weights.h5` file, for a kind of model without published weights."""
    if weights is not None and not is_weights_h5(weights):
        raise ValueError(
            f"weights must be None or the path of a .weights.h5 file that save_weights wrote for a model of the same "
            f"shape. There are no published {config.title} weights. Received: {shown(weights)}"
        )


def resnet_with_weights(build, config, shared, inherited=()):
    """Same as `with_weights`, for ResNets and for models with a ResNet as backbone.

    Args:
        inherited: Names of config fields whose values come from published weights, if these are loaded.
    """

    def match(checkpoint):
        check_kind(checkpoint, type(config))
        published = checkpoint.config
        is_same = type(published) is type(config)
        num_stages = len(published.stage_depths if is_same else config.stage_depths)
        sizes = published.stage_depths[:num_stages], published.width, getattr(published, "expansion", None)
        if sizes != (config.stage_depths, config.width, getattr(config, "expansion", None)):
            raise ValueError(f"{checkpoint.source} contains weights for {published}, but the model is {config}.")
        matched = dataclasses.replace(config, **{field: getattr(published, field) for field in inherited})
        return functools.partial(build, matched), "keep" if is_same else "reset"

    if not config.loads:
        check_weights_h5(shared.weights, config)
    return with_weights(build, config, shared, match, config.title)


def with_weights(build, config, shared, match, variant):
    """Builds a model with newly initialised weights, the weights in a `.weights.h5` file, or published weights.

    Args:
        build: Function that receives a config and `SharedArguments`, and returns a model.
        config: Architecture of the model.
        shared: `SharedArguments`
        match: Function that receives the `Checkpoint` of published weights, and returns a pair. The first element is a
            function that receives `SharedArguments` and builds the model for these weights. The second is `"keep"` if
            the head is loaded, or `"reset"` if it is newly initialised. If the weights are of another kind or size,
            `match` raises an error.
        variant: As in `open_checkpoint`.
    """
    weights = shared.weights
    shared = dataclasses.replace(shared, **checked_arguments(vars(shared), weights))
    if weights is None or is_weights_h5(weights):
        model = build(config, shared)
        if weights is not None:
            model.load_weights(os.path.expanduser(weights))
        return model
    check_published(config)  # This check comes before any download.
    tensor, shape = shared.input_tensor, shared.input_shape
    size = image_size(shape if tensor is None else getattr(tensor, "shape", ())[1:])
    checkpoint = open_checkpoint(weights, variant, model_image_size=size)
    build_matched, head = match(checkpoint)
    if tensor is None and shape is None:
        shared = dataclasses.replace(shared, input_shape=(*checkpoint.image_size, checkpoint.channels))
    return build_with_weights(functools.partial(build_matched, shared), checkpoint, head)


def build_on_trunk(trunk, config, shared, name=None):
    """Builds a newly initialised model with a backbone, a pooling and a classifier.

    Args:
        trunk: The backbone, a function `trunk(pixels, config)`. `pixels` are normalised, (B, H, W, C). The
            result is a map (B, h, w, D) or tokens (B, L, D). The pixels and the result are Keras tensors.
        config: Architecture of the model.
        shared: `SharedArguments`
        name: Name of the model.
    """
    if shared.pooling not in ("avg", None) or (shared.include_top and shared.pooling is None):
        raise ValueError(
            f"pooling must be 'avg', or None together with include_top=False. Received: pooling={shared.pooling!r}, "
            f"include_top={shared.include_top!r}"
        )
    inputs = image_inputs(shared)
    x = trunk(prepare(inputs, config, shared.include_preprocessing), config)
    if shared.pooling == "avg":
        average = keras.layers.GlobalAveragePooling2D if len(x.shape) == 4 else keras.layers.GlobalAveragePooling1D
        x = average(data_format="channels_last", name="pooling")(x)
    if shared.include_top:
        if getattr(config, "dropout_rate", 0) > 0:
            x = Dropout(config.dropout_rate, name="dropout")(x)
        classes = check_positive_integer("classes", shared.classes)
        x = classifier("predictions", classes, shared.classifier_activation)(x)
    return functional_model(inputs, x, name or config.kind)
