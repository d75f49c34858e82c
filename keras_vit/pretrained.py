"""`from_pretrained` builds a model from a file of weights. `describe` returns the recorded facts about a model."""

import dataclasses
import functools
import os
import typing

import keras

from keras_vit.architectures import AxialResNetConfig, BiTResNetConfig, ResNetConfig, read_architecture
from keras_vit.architectures.spellings import unknown_argument
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.graph import has_graph
from keras_vit.models import KINDS
from keras_vit.models.building import SharedArguments, checked_arguments, image_size
from keras_vit.models.factories import ModelArguments
from keras_vit.models.vit import check_preprocessing
from keras_vit.outputs import ACTIVATIONS, Output, outputs_of
from keras_vit.preprocessing import preprocessing_layer
from keras_vit.weights.keras_files import open_model
from keras_vit.weights.loading import build_with_weights, check_head
from keras_vit.weights.opening import open_checkpoint
from keras_vit.weights.paths import is_layer_name


def from_pretrained(
    source: str | os.PathLike,
    family: str | None = None,
    num_heads: int | None = None,
    grid_size: tuple[int, int] | None = None,
    head: str | None = None,
    output: str | None = None,
    max_depth: float | None = None,
    encoder: str | os.PathLike | None = None,
    **arguments: typing.Unpack[ModelArguments],
) -> keras.Model:
    """Builds the model that a file of published weights describes, and loads the weights.

    Sizes are read from the arrays. Other settings are not visible in the arrays: LayerNorm epsilon, kind of GELU,
    pooling, norm order, pixel normalisation and evaluation resize. They are read from the config in the file's folder,
    or from the catalogue. Otherwise, the defaults of the file's layout are used. If the layout has no default for a
    setting, an error names the argument to pass.

    Args:
        source: One of:

            * a name from `keras_vit.list_weights()`, or a short name such as `"dinov3-s16"`,
            * the name of a repository such as `"vit_small_patch16_dinov3.lvd1689m"` or `"facebook/dinov2-small"`,
            * an address: `"hf://owner/repo"`, `"gs://bucket/path"` or `"https://…"`,
            * the path of a file or folder of weights, or of a `.keras` file of a model of this package.
        family: Key of `keras_vit.weights.catalogue.FAMILIES` such as `"deit"`. It is needed for files in timm's layout
            without a config.json, for files of OpenCLIP without an open_clip_config.json, and for files that do not
            define their pixel normalisation. Without a config.json, it also defines the kind of GELU. timm's files of
            DINOv3, EVA-02 B and L, Perception Encoder and RoPE-ViT always need their config.json, because the arrays do
            not show the rotary positions. One mistake is not noticed: `family="deit3"` for a RoPE-ViT with position
            embeddings. Its arrays have the same names and shapes as those of DeiT III, so a wrong model is built.
        num_heads: Number of attention heads, if it cannot be read from the file.
        grid_size: (rows, columns) of patches in the file's position table, if they cannot be read from the file.
        head: `"keep"`: the file's classifier is loaded. `"reset"`: a new classifier that starts at zero replaces the
            file's whole head. If `norm_placement="after_pooling"` is passed too, `"reset"` also replaces the file's
            LayerNorm before the pooling by a new LayerNorm after the pooling. By default, the head is kept unless
            `classes` differs from the number of classes in the file.
        output: Kind of output, `"class_map"`, `"depth"` or `"normals"`, if the file has heads for several. `"boxes"`:
            the detector in a file of OWL-ViT or OWLv2, which needs `classes`. Without it, the image encoder is built.
        max_depth: Largest depth in metres, for the owners' files of metric depth estimators: heads of DINOv2, and Depth
            Anything V2.
        encoder: Weights of the encoder, like `source`, if the file contains the head only (DINOv2), or differences from
            the weights of the encoder (EoMT on DINOv3).
        **arguments: Any argument of `keras_vit.ViT` except `variant` and `weights`. It overrides the file's setting.
            ResNets accept any argument of `keras_vit.BiTResNet` or `keras_vit.ResNet` except sizes and `weights`.

    Returns:
        A `keras.Model`, as built by `keras_vit.ViT`, `keras_vit.BiTResNet` or `keras_vit.ResNet`. Its image size is
        read from the file unless `input_shape` is given. If the file has a classifier, the model ends with this
        classifier and a softmax. In the layouts of timm, torchvision and transformers, a classifier with one class gets
        a sigmoid, and the `problem_type` in the config.json may replace the softmax by a sigmoid (several labels per
        image) or by nothing (regression). A model from a `.keras` file is built with the arguments of the saved model,
        but with the current dtype policy. All weights are trainable.

    Raises:
        TypeError: If an argument is unknown; the message suggests the closest name.
        ValueError: If the file's format is unknown, the file is damaged or incomplete, or a setting cannot be found.
        OSError: If the source cannot be found or downloaded.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.from_pretrained("B/16@augreg-i21k-i1k-384", input_shape=(384, 512, 3))  # doctest: +SKIP
    >>> keras_vit.describe(model).source  # doctest: +SKIP
    'B/16@augreg-i21k-i1k-384'
    """
    _check_names(arguments)
    # As in keras.applications, these arguments may be None, which means not given.
    inputs = ("input_shape", "input_tensor")
    passed = checked_arguments({name: x for name, x in arguments.items() if name not in inputs or x is not None})
    given_hints = family, num_heads, grid_size, output, max_depth, encoder
    hints: dict[str, typing.Any] = dict(zip(_HINTS, given_hints, strict=True))
    if str(source).endswith(".keras"):
        if passed_hints := [name for name, value in hints.items() if value is not None]:
            names = ", ".join(passed_hints)
            raise ValueError(f"A .keras file already describes its model. Received: {source} with {names}")
        saved, checkpoint = open_model(source)
    else:
        size = image_size(passed.get("input_shape"))
        saved, checkpoint = None, open_checkpoint(source, model_image_size=size, **hints)
    check_preprocessing(checkpoint)
    given = {name: value for name, value in passed.items() if name in _ARGUMENTS}
    changes = {name: value for name, value in passed.items() if name not in given}
    classes = given.get("classes", checkpoint.classes)
    head = head or ("keep" if classes == checkpoint.classes else "reset")
    check_head(head)
    is_changed = bool(changes) or "include_top" in given or head == "reset"
    config = checkpoint.config.with_new_head() if head == "reset" else checkpoint.config
    values = _with_defaults(given, checkpoint, classes, head)
    name = values.pop("name", None)
    if "pooling" in changes and not hasattr(config, "pooling"):  # Then it is an argument of the factory.
        values["pooling"] = changes.pop("pooling")
    if unknown := sorted(changes.keys() - {field.name for field in dataclasses.fields(config)}):
        raise TypeError(f"{checkpoint.source} contains weights of a {config.title}, which has no {', '.join(unknown)}.")
    config = config.replace(**changes)
    build = functools.partial(KINDS[config.kind].build, config, SharedArguments(**values), name, checkpoint.grid_size)
    model = build_with_weights(build, checkpoint, head)
    if saved is not None:
        _check_layers(saved, model, source, is_changed)
    return model


def _with_defaults(given, checkpoint, classes, head):
    """Arguments of the function that builds the model. Arguments that are not given are read from the file."""
    defaults = {
        "include_top": classes is not None,
        "classes": classes,
        "input_shape": (*checkpoint.image_size, checkpoint.channels),
        "classifier_activation": ACTIVATIONS[checkpoint.output.kind],
        **checkpoint.arguments,
    }
    if head == "reset":
        defaults["classifier_activation"] = "softmax"
    if "input_tensor" in given:
        defaults["input_shape"] = None
    return {**defaults, **given}


def _check_layers(saved, model, source, is_changed):
    """Checks that a saved model and the model built from it have the same layers, except for requested changes."""
    before, after = (
        {layer.name for layer in layers if not isinstance(layer, keras.layers.InputLayer)}
        for layers in (saved.layers, model.layers)
    )
    if different := sorted(name for name in before ^ after if not (is_changed and is_layer_name(name))):
        raise ValueError(
            f"keras_vit cannot rebuild the model in {source}, because these layers differ: {', '.join(different)}. "
            f"Load the file with keras.saving.load_model, which restores the model unchanged."
        )


_HINTS = ("family", "num_heads", "grid_size", "output", "max_depth", "encoder")
_ARGUMENTS = {"name", *(field.name for field in dataclasses.fields(SharedArguments))} - {"weights", "pooling"}


def _check_names(arguments):
    known = [*_HINTS, "head", *ModelArguments.__annotations__]
    for name in arguments:
        if name not in known:
            hint = " Pass the weights as the first argument, source." if name == "weights" else ""
            raise unknown_argument(name, "an argument of from_pretrained", known, hint=hint)


@dataclasses.dataclass(frozen=True)
class Description:
    """Describes a model: its architecture, the source and licence of its weights, and its preprocessing.

    Args:
        config: `ViTConfig` of the model. For other kinds of models, a config of `keras_vit.architectures`.
        source: Source of the weights, or `None` if no weights were loaded.
        adaptations: Dictionary. The keys are the names of adapted weights, of config fields that differ from the file,
            and of settings of the file that have no effect. The values describe them.
        pixels: Preparation of the images: mean, std, resize, crop and interpolation, as in `keras_vit.Preprocessing`;
            `normalize` is true if the model normalises the pixels itself.
        label_space: Classes of the model: `"imagenet1k"`, `"imagenet21k"`, a list of class names, or `None` if unknown.
        licence: Licence of the published weights, usually an SPDX identifier such as `"Apache-2.0"`, or `None` if it is
            unknown or no weights were loaded. A fine-tuned model has the licence of the weights from which it started.
        outputs: {name of the layer that returns an output: `keras_vit.Output`, what the output means}
    """

    config: ViTConfig | BiTResNetConfig | AxialResNetConfig | ResNetConfig
    source: str | None
    adaptations: dict
    pixels: dict
    label_space: str | list[str] | None
    licence: str | None
    outputs: dict[str, Output]


def describe(model: keras.Model) -> Description:
    """Returns the architecture of a model, the source and licence of its weights, and its preprocessing.

    `.keras` files store this information.

    Args:
        model: Model of this package, or a model that contains one.

    Returns:
        A `Description`. `outputs` is empty if `model` is not functional: its layers do not show what it returns.

    Raises:
        ValueError: Unless `model` contains exactly one model of this package.

    Example:

    >>> import keras_vit
    >>> description = keras_vit.describe(keras_vit.ViT("Ti/16", num_layers=1))
    >>> description.config.hidden_dim, description.pixels["mean"], description.source
    (192, 0.5, None)
    """
    layer = preprocessing_layer(model)
    pixels = {**layer.pixel_settings, "normalize": layer.normalize}
    config = read_architecture(layer.architecture)
    licence = (layer.origin or {}).get("licence")
    outputs = outputs_of(model) if has_graph(model) else {}
    return Description(config, layer.source, layer.adaptations, pixels, layer.label_space, licence, outputs)
