"""`load_weights`: loads published weights into a model."""

import dataclasses
import logging
import os

import keras

from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.graph import is_quantized
from keras_vit.licences import warn_if_restricted
from keras_vit.outputs import ACTIVATIONS, output_of, set_output
from keras_vit.preprocessing import Preprocessing, preprocessing_layer, vision_model
from keras_vit.weights.adapt import Target, adapt, adapt_preprocessing
from keras_vit.weights.assign import (
    assign,
    canonical_variables,
    check,
    checksum,
    in_place_of_initial_values,
    leave_empty,
)
from keras_vit.weights.formats.expressible import check_published
from keras_vit.weights.opening import open_checkpoint
from keras_vit.weights.paths import DENSE_HEAD, HEAD, POSITIONS, layer_of

logger = logging.getLogger("keras_vit")


@dataclasses.dataclass(frozen=True, repr=False)
class LoadReport:
    """Result of `load_weights`.

    Args:
        source: Source of the weights.
        format: Name of the file's layout, such as `"timm"`.
        loaded: Canonical paths of the weights that were loaded.
        adapted: Dictionary. The keys are paths of adapted weights, and names of config fields that have one value in
            the file and another in the model. The values describe the changes.
        skipped: Dictionary. The keys are names or canonical paths of weights that were left out. The values are the
            reasons.
        initialized: Canonical paths of weights, or names of whole layers, that were not loaded from the file.
        ignored: Dictionary. The keys are names of settings in the file's configuration that are unknown, or that cannot
            be used. The values describe them. Such settings have no effect.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", classes=10)  # doctest: +SKIP
    >>> keras_vit.load_weights(model, "Ti/16@augreg-i21k-i1k-224", head="reset").initialized  # doctest: +SKIP
    ('predictions/kernel', 'predictions/bias')
    """

    source: str
    format: str
    loaded: tuple[str, ...]
    adapted: dict[str, str]
    skipped: dict[str, str]
    initialized: tuple[str, ...]
    ignored: dict[str, str] = dataclasses.field(default_factory=dict)

    def __repr__(self):
        return (
            f"LoadReport(source={self.source!r}, format={self.format!r}, loaded=<{len(self.loaded)} weights>, "
            f"adapted={self.adapted}, skipped=<{len(self.skipped)} arrays>, initialized={self.initialized}, "
            f"ignored={self.ignored})"
        )


def load_weights(
    model: keras.Model,
    source: str | os.PathLike,
    head: str = "keep",
    grid_size: tuple[int, int] | None = None,
    family: str | None = None,
) -> LoadReport:
    """Loads published weights into a model.

    Weights for another image size, patch size or number of channels are adapted to the model. If the model averages its
    patch tokens, the file's class token is left out. Each adaptation, and each setting of the file that has no effect,
    is logged and reported. Any other difference
    raises an error, and the model's weights remain unchanged. The model's `preprocessing` layer is set to the
    preprocessing of the weights.

    Args:
        model: Model of this package, or a model that contains one.
        source: Name in the catalogue (see `keras_vit.list_weights`), path of a file or folder, `"hf://owner/repo"`,
            `"gs://bucket/path"` or `"https://…"`. A Vision Transformer loads the `.npz` files of Google and big_vision,
            the `.safetensors` files of timm and Hugging Face, KerasHub presets, image towers of OpenCLIP, and the
            original `.pth` and `.pt` files of DeiT, DINO, DINOv2, DINOv3, EVA, I-JEPA, MAE, MoCo v3 and Perception
            Encoder. A BiT-ResNet loads the `.npz` files of big_transfer and big_vision, and timm's files.
            A ResNet loads the files of torchvision and timm. A VT-ResNet, VT-FPN or Panoptic FPN loads its backbone
            from the files of a ResNet.
        head: `"keep"`: the file's classifier is loaded and must have as many classes as the model. `"reset"`: the
            file's whole head is left out, as in fine-tuning (arXiv 2010.11929, appendix B.1.1). The model's classifier
            starts at zero, and its `pre_logits` layer, if it has one, keeps its weights; it only gets those of a file
            with such a layer but without a classifier, such as the pooler of transformers. If the model has a LayerNorm
            after the pooling, but the file has one before it, the model's LayerNorm gets its initial values. A
            VT-ResNet, VT-FPN or Panoptic FPN needs `"reset"`. Layers of these models that do not exist in a ResNet keep
            their weights.
        grid_size: (rows, columns) of patches in the file's position table, if they cannot be read from the file.
        family: Same as in `keras_vit.from_pretrained`.

    Returns:
        A `LoadReport`.

    Raises:
        ValueError: If the weights do not fit; the message lists weights that are missing, unknown or of another shape.
        OSError: If the source cannot be found or downloaded.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("B/16", input_shape=(384, 512, 3), classes=10)  # doctest: +SKIP
    >>> report = keras_vit.load_weights(model, "B/16@augreg-i21k", head="reset")  # doctest: +SKIP
    >>> report.adapted["position_embedding/embedding"]  # doctest: +SKIP
    '14 x 14 positions resampled to 24 x 32 (align_corners)'
    """
    check_head(head)
    target = target_of(model)
    check_published(target.config)  # Before any download.
    checkpoint = open_checkpoint(
        source,
        None if isinstance(target.config, ViTConfig) else target.config.title,  # The catalogue has only ViTs.
        family=family,
        grid_size=grid_size,
        model_num_heads=getattr(target.config, "num_heads", None),
        model_image_size=target.image_size,
    )
    return _load(model, checkpoint, target, head, assign)


def check_head(head):
    """Raises ValueError unless `head` is an accepted value."""
    if head not in ("keep", "reset"):
        raise ValueError(f"head must be 'keep' or 'reset'. Received: {head!r}")


def check_kind(checkpoint, config_class, head="reset"):
    """Checks that a kind of model can load the weights of a checkpoint and, with `head="keep"`, also its head."""
    source_title, title = checkpoint.config.title, config_class.title
    if checkpoint.config.kind not in config_class.loads:
        raise ValueError(f"{checkpoint.source} contains the weights of a {source_title}, but the model is a {title}.")
    if head == "keep" and type(checkpoint.config) is not config_class:
        raise ValueError(
            f"{checkpoint.source} contains the weights of a {source_title}. A {title} can load "
            f"only its backbone or encoder from it. To do so, pass head='reset' to keras_vit.load_weights."
        )


def build_with_weights(build, checkpoint, head="keep"):
    """Builds a model with a checkpoint's weights instead of initial values; `build()` returns the model."""
    with in_place_of_initial_values() as assign_later:
        model = build()
        try:
            target = target_of(model)
            if checkpoint.format != "keras":
                check_published(target.config)
            _load(model, checkpoint, target, head, assign_later)
        except BaseException:
            leave_empty(model.variables)
            raise
    return model


def _load(model, checkpoint, target, head, assign):
    variables = canonical_variables(model)
    check_kind(checkpoint, type(target.config), head)
    _check_classes(checkpoint, target, head)
    try:
        weights, pixels = checkpoint.read(), checkpoint.preprocessing or {}  # `read` closes the file.
        Preprocessing(**pixels)  # Raises ValueError if a value is invalid.
        for name in ("mean", "std"):
            if isinstance(pixels.get(name), (tuple, list)) and len(pixels[name]) != checkpoint.channels:
                raise ValueError(
                    f"{name}={pixels[name]} of the pixels does not fit images with {checkpoint.channels} channels."
                )
        adaptation = adapt(weights, checkpoint, target, head)
        missing = [path for path in variables if path not in adaptation.weights]
        if head == "reset":
            adaptation.initialized.extend(path for path in missing if path.startswith("pre_logits/"))
        initialized = set(adaptation.initialized)
        for path in missing:
            if not initialized.isdisjoint((path, layer_of(path))):
                del variables[path]
        dtypes = {layer.name: {layer.variable_dtype, layer.compute_dtype} for layer in vision_model(model).layers}
        check(adaptation.weights, variables, dtypes)
        preprocessing = _preprocessing(model, checkpoint, target, adaptation)
    except ValueError as error:
        raise ValueError(f"{checkpoint.source}: {error}") from error
    origin = checkpoint.origin
    if origin is not None and "checksum" not in origin:  # The `origin` in a `.keras` file has a checksum.
        is_complete = not (adaptation.adapted or adaptation.initialized or adaptation.skipped)
        origin = {**origin, "checksum": checksum(adaptation.weights) if is_complete else None}
    adaptation.adapted |= _other_activation(model, checkpoint, target, head)
    if origin is not None:
        warn_if_restricted(origin["licence"], origin["source"])
    assign(adaptation.weights, variables)
    report = LoadReport(
        source=checkpoint.source,
        format=checkpoint.format,
        loaded=tuple(path for path in variables if path not in initialized),
        adapted=adaptation.adapted,
        skipped={**dict.fromkeys(checkpoint.skipped, "not part of the model"), **adaptation.skipped},
        initialized=tuple(adaptation.initialized),
        ignored=checkpoint.ignored,
    )
    _record(model, preprocessing, report, origin)
    preprocessing_layer(model).outputs = None
    vision, output = vision_model(model), checkpoint.output
    if target.classes is not None and target.config.output == "classes" and head == "keep":
        found = output_of(vision)
        # A head without an activation looks like a classifier. An activation shows the kind of scores.
        if found.kind != output.kind and (found.activation is None or ACTIVATIONS[output.kind] is None):
            set_output(vision, output.kind, output.names, output.units)
    return report


def target_of(model):
    """The `Target` of a model of this package."""
    if is_quantized(model):
        raise ValueError(
            f"{model.name!r} was quantized by Keras, and no format of published weights supports that. Load or save "
            f"weights before model.quantize. To save quantized weights, call model.save."
        )
    config = read_architecture(preprocessing_layer(model).architecture)
    if not config.loads:
        raise ValueError(
            f"There are no published weights for {config.title}s such as {model.name!r}. To save and load its own "
            f"weights, call model.save_weights and model.load_weights with a .weights.h5 file."
        )
    shapes = {path: tuple(variable.shape) for path, variable in canonical_variables(model).items()}
    grid_size = None
    if tables := [path for path in shapes if POSITIONS.fullmatch(path)]:
        grid_size = vision_model(model).get_layer(layer_of(tables[0])).grid_size
    has_variable_size = None in vision_model(model).input_shape[1:3]
    return Target(config, shapes, grid_size, has_variable_size)


def _check_classes(checkpoint, target, head):
    classes = target.classes
    if head == "reset" or classes is None:
        return
    if checkpoint.unsupported_head:
        raise ValueError(
            f"The classifier of {checkpoint.source} reads {checkpoint.unsupported_head}. No classifier of this package "
            f"does this. Load the encoder with include_top=False, or pass head='reset' for a new classifier."
        )
    if classes == checkpoint.classes:
        return
    source_head = "no classifier" if checkpoint.classes is None else f"{checkpoint.classes} classes"
    raise ValueError(
        f"{checkpoint.source} has {source_head}, but the model has {classes} classes. For a new classifier that starts "
        f"at zero, call keras_vit.from_pretrained(..., classes={classes}) or keras_vit.load_weights(..., "
        f"head='reset'). Otherwise build the model with "
        f"{'' if checkpoint.classes is None else f'classes={checkpoint.classes} or '}include_top=False."
    )


def _other_activation(model, checkpoint, target, head):
    """{"classifier_activation": text} if the model's activation is wrong for the outputs of the file's head."""
    expected = ACTIVATIONS[checkpoint.output.kind]
    if expected == "softmax" or target.classes is None or target.config.output != "classes" or head == "reset":
        return {}
    activation = vision_model(model).layers[-1].activation
    name = getattr(activation, "__name__", activation)
    if name in ("linear", expected, checkpoint.output.activation):
        return {}
    own = "no activation" if expected is None else repr(expected)
    return {
        "classifier_activation": f"the classifier of the file has {own}, but that of the model has {name!r}. Build the "
        f"model with classifier_activation={expected!r}"
    }


def _preprocessing(model, checkpoint, target, adaptation):
    """New arguments of the model's `Preprocessing` layer."""
    layer, shape = preprocessing_layer(model), vision_model(model).input_shape
    if checkpoint.preprocessing is None:
        preprocessing = layer.pixel_settings
    else:
        channels = target.shapes[target.first_kernel][2]
        preprocessing = adapt_preprocessing(checkpoint.preprocessing, shape[1:3], checkpoint.image_size, channels)
        if target.config.output != "classes":  # Pixels of the whole image are predicted, so there is no crop.
            preprocessing |= {"resize": layer.resize, "crop": None}
    preprocessing["label_space"] = None if adaptation.initialized else checkpoint.label_space
    Preprocessing(**preprocessing)  # Raises ValueError before any weight is assigned.
    return preprocessing


def _record(model, preprocessing, report, origin):
    """Records the report and the preprocessing in the model's `preprocessing` layer, and logs the adaptations."""
    layer = preprocessing_layer(model)
    layer.source, layer.origin = report.source, origin
    layer.adaptations = {
        **report.ignored,
        **report.adapted,
        **dict.fromkeys(report.initialized, "not loaded from the file"),
    }
    layer.set_preprocessing(**preprocessing)
    for name, change in layer.adaptations.items():
        # A new classifier was requested by the caller (`classes` or `head="reset"`), so there is no warning about it.
        level = logging.INFO if name.startswith((*HEAD, *DENSE_HEAD)) else logging.WARNING
        logger.log(level, "%s: %s: %s", report.source, name, change)
