"""`from_pretrained`, the model that a file describes; `describe`, what a model knows of itself."""

import dataclasses
import functools
import inspect

import keras

from keras_vit.architectures import AxialResNetConfig, BiTResNetConfig, ResNetConfig, read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.checks import did_you_mean
from keras_vit.models import bit_resnet, resnet
from keras_vit.models.building import build_convolutional, checked_arguments, image_size
from keras_vit.models.vit import build_model, check_pixels
from keras_vit.preprocessing import preprocessing_layer
from keras_vit.spellings import argument_hint
from keras_vit.weights.assign import is_own_layer
from keras_vit.weights.keras_files import open_model
from keras_vit.weights.loading import build_with_weights, check_head
from keras_vit.weights.opening import open_checkpoint


def from_pretrained(source, family=None, num_heads=None, grid_size=None, head=None, **arguments):
    """Builds the model that a file of published weights describes, and loads them.

    Sizes are read from the arrays; what arrays do not show (LayerNorm epsilon, kind of GELU, pooling, norm order, pixel
    normalisation, evaluation resize) comes from the config beside the file or the catalogue, else from what its layout
    implies. What nobody says is asked for by name, never guessed.

    Args:
        source: Name in the catalogue (see `keras_vit.list_weights`), path of a file or folder, `"hf://owner/repo"`,
            `"gs://bucket/path"` or `"https://…"`; or the path of a `.keras` file of a model that a function of this
            package built, such as a fine-tuned one.
        family: Whose weights they are, a key of `keras_vit.weights.catalogue.FAMILIES` such as `"deit"`: for files of
            timm's layout without a config.json, and for files that do not say how their pixels were normalised.
        num_heads: Attention heads, for files that do not say.
        grid_size: (rows, columns) of patches of the file's position table, for files that do not say.
        head: `"keep"`: the file's classifier is loaded. `"reset"`: a fresh classifier that starts at zero takes the
            place of the file's whole head, and with `norm_placement="after_pooling"` a fresh LayerNorm that of the
            file's final norm, if this stands before the pooling. By default the head is kept unless `classes` differs
            from the file's.
        **arguments: Any argument of `keras_vit.ViT` but `variant` and `weights`; it wins over the file. For a file of a
            BiT-ResNet or a ResNet, any of `keras_vit.BiTResNet` or `keras_vit.ResNet` but sizes and `weights`.

    Returns:
        A `keras.Model`, as `keras_vit.ViT`, `keras_vit.BiTResNet` or `keras_vit.ResNet` builds it. Its image
        size is the file's unless `input_shape` is given; it ends with the file's classifier if there is one, followed
        by softmax. From a `.keras` file it keeps that model's arguments. Like any new model it has the current dtype
        policy, and all of its weights are trainable.

    Raises:
        TypeError: If an argument is unknown; the message names the nearest.
        ValueError: If the file is unknown, damaged, or leaves something unsaid; the message says what to pass.
        OSError: If the source cannot be found or fetched.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.from_pretrained("B/16@augreg-i21k-i1k-384", input_shape=(384, 512, 3))  # doctest: +SKIP
    >>> keras_vit.describe(model).source  # doctest: +SKIP
    'B/16@augreg-i21k-i1k-384'
    """
    arguments = {name: value for name, value in arguments.items() if name not in _INPUTS or value is not None}
    _check_names(arguments)
    arguments = checked_arguments(arguments)
    hints = {"family": family, "num_heads": num_heads, "grid_size": grid_size}
    saved, checkpoint = _open(source, hints, image_size(arguments.get("input_shape")))
    check_pixels(checkpoint)
    given = {name: value for name, value in arguments.items() if name in _ARGUMENTS}
    changes = {name: value for name, value in arguments.items() if name not in given}
    classes = given.get("classes", checkpoint.classes)
    head = head or ("keep" if classes == checkpoint.classes else "reset")
    check_head(head)
    is_vision_transformer = isinstance(checkpoint.config, ViTConfig)
    if head == "reset" and is_vision_transformer:
        # A new task takes the place of the whole head (ViT, arXiv 2010.11929, section 3.2).
        changes = {"representation_dim": None, **changes}
    arguments = _with_defaults(given, checkpoint, classes, head)
    if is_vision_transformer:
        config = checkpoint.config.replace(**changes)
        build = functools.partial(build_model, config, grid_size=checkpoint.grid_size, **arguments)
    else:
        build = functools.partial(_build_resnet, checkpoint, changes, arguments)
    model = build_with_weights(build, checkpoint, head)
    if saved is not None:
        _check_layers(saved, model, source, is_changed=bool(changes) or "include_top" in given)
    return model


def _with_defaults(given, checkpoint, classes, head):
    """Arguments of the function that builds the model: those that are given, else as the file has them."""
    defaults = {
        "include_top": classes is not None,
        "classes": classes,
        "input_shape": (*checkpoint.image_size, checkpoint.channels),
        "classifier_activation": "softmax" if checkpoint.has_activation else None,
        **checkpoint.arguments,
    }
    if head == "reset":
        defaults["classifier_activation"] = "softmax"
    if "input_tensor" in given:
        defaults["input_shape"] = None
    return {**defaults, **given}


def _open(source, hints, size):
    """The model of a `.keras` file, for others `None`, and the `Checkpoint` of a source."""
    if not str(source).endswith(".keras"):
        return None, open_checkpoint(source, model_image_size=size, **hints)
    if given := [name for name, value in hints.items() if value is not None]:
        raise ValueError(f"A .keras file describes its model itself. Received: {source} with {', '.join(given)}")
    return open_model(source)


def _check_layers(saved, model, source, is_changed):
    """Refuses a file whose model has other layers than the one built from it, but for changes that were asked for."""
    before, after = (
        {layer.name for layer in layers if not isinstance(layer, keras.layers.InputLayer)}
        for layers in (saved.layers, model.layers)
    )
    if different := sorted(name for name in before ^ after if not (is_changed and is_own_layer(name))):
        raise ValueError(
            f"{source} holds a model with other layers than those that keras_vit builds: {', '.join(different)}. Load "
            f"it with keras.saving.load_model, which builds it as it was."
        )


def _build_resnet(checkpoint, changes, arguments):
    config, changes = checkpoint.config, dict(changes)
    pooling = {"pooling": changes.pop("pooling")} if "pooling" in changes else {}
    if others := sorted(changes.keys() - _field_names(type(config))):
        raise TypeError(f"{checkpoint.source} holds weights of a {config.title}, which has no {', '.join(others)}.")
    config = dataclasses.replace(config, **changes)
    return build_convolutional(config, _TRUNKS[type(config)], **{**arguments, **pooling})


def _field_names(config_class):
    return {field.name for field in dataclasses.fields(config_class)}


_TRUNKS = {BiTResNetConfig: bit_resnet.trunk, ResNetConfig: resnet.trunk}

_INPUTS = ("input_shape", "input_tensor")  # None is the same as nothing, as in keras.applications.
_ARGUMENTS = set(inspect.signature(build_model).parameters) - {"config", "grid_size"}


def _check_names(arguments):
    fields = [field.name for field in dataclasses.fields(ViTConfig)]
    others = set.union(*map(_field_names, _TRUNKS)) - set(fields)
    known = ["family", "head", *sorted(_ARGUMENTS), *fields, *sorted(others)]
    for name in arguments:
        if name not in known:
            hint = argument_hint(name, known) or did_you_mean(name, known)
            if name == "weights":
                hint = " The first argument, source, names the weights."
            raise TypeError(f"{name!r} is not an argument of from_pretrained.{hint} Accepted: {', '.join(known)}")


@dataclasses.dataclass(frozen=True)
class Description:
    """What a model knows of itself.

    Args:
        config: Its `ViTConfig`; of another kind of model one of `keras_vit.architectures`, which has fewer fields.
        source: Where its weights come from; `None`: they were not loaded.
        adaptations: {what: how} the loaded weights were changed to fit the model, or differ from it.
        pixels: How its images are prepared: mean, std, resize, crop, interpolation, as in `keras_vit.Preprocessing`,
            and whether the model normalises them itself.
        label_space: What its classes are: `"imagenet1k"`, `"imagenet21k"`, a list of their names, or `None`: not known.
    """

    config: ViTConfig | BiTResNetConfig | AxialResNetConfig | ResNetConfig
    source: str | None
    adaptations: dict
    pixels: dict
    label_space: str | list[str] | None


def describe(model):
    """What a model knows of itself: its architecture, its weights, its pixels. It survives a `.keras` file.

    Args:
        model: A model of this package, also nested in another.

    Returns:
        A `Description`.

    Raises:
        ValueError: If `model` is not of this package.

    Example:

    >>> import keras_vit
    >>> description = keras_vit.describe(keras_vit.ViT("Ti/16", num_layers=1))
    >>> description.config.hidden_dim, description.pixels["mean"], description.source
    (192, 0.5, None)
    """
    layer = preprocessing_layer(model)
    pixels = {name: getattr(layer, name) for name in ("mean", "std", "resize", "crop", "interpolation", "normalize")}
    return Description(
        config=read_architecture(layer.architecture),
        source=layer.source,
        adaptations=layer.adaptations,
        pixels=pixels,
        label_space=layer.label_space,
    )
