"""What the outputs of a model mean. Shapes: B batch, H W image."""

import collections.abc
import dataclasses

import keras

from keras_vit.architectures import read_architecture
from keras_vit.checks import check_choice, check_flag
from keras_vit.graph import as_functional, leaves
from keras_vit.layers import UpsampleLike
from keras_vit.preprocessing import preprocessing_layer, vision_model

ACTIVATIONS = {
    "classes": "softmax",
    "labels": "sigmoid",
    "values": None,
    "class_map": "softmax",
    "masks": "sigmoid",
    "depth": None,
    "normals": None,
    "boxes": None,
    "embedding": None,
    "objects": "softmax",
    "object_labels": "sigmoid",
}
"""{kind of an output: the activation that makes its scores probabilities, or `None` if it has no scores}"""
_WITH_UNITS = ("values", "depth")
_RANKS = dict.fromkeys(("class_map", "masks", "depth", "normals"), 4) | {
    "objects": 3,
    "object_labels": 3,
    "classes": 2,
    "labels": 2,
    "values": 2,
    "boxes": 3,
}


@dataclasses.dataclass(frozen=True)
class Output:
    """Describes an output of a model.

    Args:
        kind: `"classes"`: scores of classes that exclude each other, (B, classes). `"labels"`: scores of labels of
            which an image can have several, (B, labels). `"values"`: numbers, (B, values). `"class_map"`: scores of the
            classes of each pixel, (B, H, W, classes). `"masks"`: scores of the pixels of N masks, (B, H, W, N).
            `"objects"`: scores of the classes of N masks or boxes, (B, N, classes + 1); the last means that there is no
            object. `"object_labels"`: scores of the labels of N boxes, (B, N, labels). `"depth"`: distances, (B, H, W,
            1). `"normals"`: unit vectors, (B, H, W, 3). `"boxes"`: centre x, centre y, width and height of N boxes as
            shares of the image, (B, N, 4). `"embedding"`: features, (B, ..., D).
        activation: Name of the activation of the last layer, or `None` if there is none. Scores without an activation
            are logits.
        names: Names of the classes, labels or values, or `None` if they are unknown.
        units: Unit of each value or of the depth, such as `["years"]`, or `None`.
        is_thing: Whether each class of objects is one of things, which can be counted, or `None` if it is unknown. In a
            panoptic segmentation, all pixels of another class (stuff, such as sky) are one segment.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", num_layers=1, classes=10)
    >>> keras_vit.describe(model).outputs
    {'predictions': Output(kind='classes', activation='softmax', names=None, units=None, is_thing=None)}
    """

    kind: str
    activation: str | None = None
    names: list[str] | None = None
    units: list[str] | None = None
    is_thing: list[bool] | None = None

    def __post_init__(self):
        check_choice("kind", self.kind, ACTIVATIONS)

    @property
    def has_logits(self):
        """Whether the output has scores that are not probabilities yet."""
        return ACTIVATIONS[self.kind] is not None and self.activation is None


def outputs_of(model: keras.Model) -> dict[str, Output]:
    """What the outputs of a model mean: {name of the layer that returns the output: `Output`}.

    The config and the head of a model of this package show what its output means, unless `set_output` has recorded
    something else. If the model is part of another model, the last activation of that model decides, or its shape if
    there is a vector for each pixel.

    Args:
        model: Model of this package, or a model that contains one.

    Raises:
        ValueError: Unless `model` contains exactly one model of this package.
    """
    layer, vision, described = preprocessing_layer(model), vision_model(model), {}
    for name, tensor in zip(_names(model), model.outputs, strict=True):
        record = (layer.outputs or {}).get(name)
        if record is None and as_functional(model).get_layer(name) is vision:
            described |= {name: output_of(vision)}
            continue
        activation = _activation(model, name)
        label = getattr(activation, "__name__", None)
        record = record or {"kind": _kind(model, name, tensor, activation)}
        names = record.get("names") or layer.class_names(tensor.shape[-1] - (record["kind"] == "objects"))
        units = record.get("units") or (_architecture(model).units if record["kind"] == "depth" else None)
        label = None if label == "linear" else label
        described[name] = Output(record["kind"], label, names, units, record.get("is_thing"))
    return described


def output_of(model):
    """The `Output` of a model with one output. Raises a ValueError if it has several.

    Masks or boxes and the classes of their objects count as one output: masks or boxes with the names of these classes.
    """
    described = outputs_of(model)
    kinds = {output.kind: output for output in described.values()}
    shapes, objects = kinds.get("masks") or kinds.get("boxes"), kinds.get("objects") or kinds.get("object_labels")
    if len(described) == 2 and shapes and objects:
        return dataclasses.replace(shapes, names=objects.names, is_thing=objects.is_thing)
    if len(described) > 1:
        raise ValueError(f"{model.name!r} has several outputs: {', '.join(described)}. A model with one is needed.")
    return next(iter(described.values()))


def set_output(
    model: keras.Model,
    kind: str,
    names: collections.abc.Sequence[str] | None = None,
    units: collections.abc.Sequence[str] | None = None,
    output: str | None = None,
    is_thing: collections.abc.Sequence[bool] | None = None,
) -> None:
    """Records what an output of a model means. `.keras` files contain the record, and exports follow it.

    A record is needed if the layers do not show the meaning: numbers such as an age look like logits of classes.

    Args:
        model: Model of this package, or a model that contains one.
        kind: Kind of the output, as in `keras_vit.Output`.
        names: Name of each class, label or value.
        units: Unit of each value, or of the depth.
        output: Name of the layer that returns the output, for a model with several outputs.
        is_thing: Whether each class is one of things, for objects.

    Raises:
        ValueError: If a value is invalid, or if there is no such output.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", num_layers=1, classes=1, classifier_activation=None)
    >>> keras_vit.set_output(model, "values", names=["age"], units=["years"])
    >>> keras_vit.describe(model).outputs["predictions"].units
    ['years']
    """
    layer, known = preprocessing_layer(model), _names(model)
    if output is None and len(known) > 1:
        raise ValueError(f"{model.name!r} has several outputs. Pass output=, one of {', '.join(known)}.")
    output = check_choice("output", output or known[0], known)
    shape = model.outputs[known.index(output)].shape
    size = shape[-1] - (kind == "objects")  # "No object" has no name.
    record: dict[str, str | list[str] | list[bool]] = {"kind": Output(kind).kind}
    if len(shape) != _RANKS.get(kind, len(shape)):
        raise ValueError(
            f"An output of kind={kind!r} has {_RANKS[kind]} axes. Received: output {output!r} of shape {shape}"
        )
    for name, texts in (("names", names), ("units", units)):
        if texts is not None:
            if isinstance(texts, str) or len(texts) != size or not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{name} must be a list of {size} texts, one for each number. Received: {texts!r}")
            # Two classes of ImageNet have the same name, but values are columns of a table.
            if name == "names" and kind == "values" and len(set(texts)) < len(texts):
                raise ValueError(f"names of values must be different. Received: {texts!r}")
            record[name] = list(texts)
    if units is not None and kind not in _WITH_UNITS:
        kinds = " or ".join(map(repr, _WITH_UNITS))
        raise ValueError(f"units are for kind={kinds}. Received: units={units!r} and kind={kind!r}")
    if is_thing is not None:
        if kind != "objects" or len(is_thing) != size:
            raise ValueError(
                f"is_thing is for kind='objects', with one value for each class. Received: kind={kind!r}, "
                f"{len(is_thing)} values and an output of shape {shape}"
            )
        record["is_thing"] = [check_flag("is_thing", each) for each in is_thing]
    layer.outputs = {**(layer.outputs or {}), output: record}


def _names(model):
    return as_functional(model).output_names


def _architecture(model):
    return read_architecture(preprocessing_layer(model).architecture)


def _kind(model, name, tensor, activation):
    """The kind of an output of which there is no record."""
    if model is vision_model(model) and any(layer.name == "predictions" for layer in model.layers):
        kind = _architecture(model).output_kind(name)
    elif activation not in (keras.activations.softmax, keras.activations.sigmoid, keras.activations.linear):
        return "embedding"
    else:
        is_map = len(tensor.shape) == 4 and tensor.shape[1:3] == model.input_shape[1:3]
        kind = "class_map" if is_map else "classes"
    return "labels" if kind == "classes" and activation is keras.activations.sigmoid else kind


def _activation(model, name):
    """The activation at the end of an output, or `None` if its layer has none."""
    ends = [as_functional(model).get_layer(name)] if len(model.outputs) > 1 else reversed(list(leaves(model)))
    for layer in ends:
        if isinstance(layer, keras.layers.Softmax):
            return keras.activations.softmax
        is_cast = isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.linear
        if not is_cast and not isinstance(layer, UpsampleLike):
            return getattr(layer, "activation", None)
    return None
