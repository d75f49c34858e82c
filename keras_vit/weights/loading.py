"""`load_weights`: weights from anywhere into a model."""

import dataclasses
import logging

from keras_vit.architectures import PanopticFPNConfig, read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.graph import is_quantized
from keras_vit.preprocessing import Preprocessing, preprocessing_layer, vision_model
from keras_vit.weights.adapt import FIRST_KERNELS, HEAD, Target, adapt, adapt_pixels
from keras_vit.weights.assign import assign, canonical_variables, check, in_place_of_initial_values, leave_empty
from keras_vit.weights.checkpoint import TAKEN_BY
from keras_vit.weights.expressible import check_published
from keras_vit.weights.opening import open_checkpoint

logger = logging.getLogger("keras_vit")


@dataclasses.dataclass(frozen=True, repr=False)
class LoadReport:
    """What `load_weights` did.

    Args:
        source: Where the weights came from.
        format: Whose layout the file has.
        loaded: Canonical paths of the weights that were written.
        adapted: {canonical path, or field of the config: what was changed, or what differs}
        skipped: {name in the file, or canonical path: why it was left out}
        initialized: Canonical paths of weights, or names of whole layers, that start afresh.
    """

    source: str
    format: str
    loaded: tuple[str, ...]
    adapted: dict[str, str]
    skipped: dict[str, str]
    initialized: tuple[str, ...]

    def __repr__(self):
        return (
            f"LoadReport(source={self.source!r}, format={self.format!r}, loaded=<{len(self.loaded)} weights>, "
            f"adapted={self.adapted}, skipped=<{len(self.skipped)} arrays>, initialized={self.initialized})"
        )


def load_weights(model, source, head="keep", grid_size=None, family=None):
    """Loads published weights into a model, exactly or not at all.

    Another image size or number of channels adapts by itself, another patch size if the model has one, a class token
    is left out where the model averages its patches; each is logged and reported. Anything else that does not fit
    raises an error, and the model keeps the weights it had. The model's `preprocessing` layer learns how the pixels of
    the weights are prepared.

    Args:
        model: A model of this package, also nested in another.
        source: Name in the catalogue (see `keras_vit.list_weights`), path of a file or folder, `"hf://owner/repo"`,
            `"gs://bucket/path"` or `"https://…"`. Formats: Google's and big_vision's `.npz`, timm's and Hugging Face's
            `.safetensors`, KerasHub presets, the original `.pth` of DeiT, DINO, DINOv2 and MAE; for a BiT-ResNet the
            `.npz` of big_transfer and big_vision, and timm's files; for a ResNet those of torchvision and timm. A
            VT-ResNet takes its trunk from those of a ResNet, a VT-FPN or Panoptic FPN its backbone.
        head: `"keep"`: the file's classifier is loaded and must have as many classes as the model. `"reset"`: the
            model's classifier starts at zero, and a LayerNorm behind the pooling afresh if the file has one before it
            instead. A VT-ResNet, VT-FPN and Panoptic FPN need `"reset"`: what no ResNet has keeps its weights.
        grid_size: (rows, columns) of patches of the file's position table, for files that do not say.
        family: As of `keras_vit.from_pretrained`, for files that do not say whose weights they are.

    Returns:
        A `LoadReport`.

    Raises:
        ValueError: If the weights do not fit; the message lists what is missing, unknown or of another shape.
        OSError: If the source cannot be found or fetched.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("B/16", input_shape=(384, 512, 3), classes=10)
    >>> report = keras_vit.load_weights(model, "B/16@augreg-i21k", head="reset")  # doctest: +SKIP
    >>> report.adapted["position_embedding/embedding"]  # doctest: +SKIP
    '14 x 14 positions resampled to 24 x 32 (align_corners)'
    """
    check_head(head)
    target = target_of(model)
    check_published(target.config)  # Before anything is fetched.
    checkpoint = open_checkpoint(
        source,
        None if isinstance(target.config, ViTConfig) else target.config.title,  # Not in the catalogue.
        family=family,
        grid_size=grid_size,
        model_num_heads=getattr(target.config, "num_heads", None),
        model_image_size=target.image_size,
    )
    return _load(model, checkpoint, target, head, assign)


def check_head(head):
    """Refuses what is no way to treat a file's classifier."""
    if head not in ("keep", "reset"):
        raise ValueError(f"head must be 'keep' or 'reset'. Received: {head!r}")


def check_kind(checkpoint, config_class, head="reset"):
    """Refuses the weights of another kind of model, and a head of one whose head is no part of the model."""
    theirs, ours = checkpoint.config.title, config_class.title
    if type(checkpoint.config) is not TAKEN_BY[config_class]:
        raise ValueError(f"{checkpoint.source} holds the weights of a {theirs}, and the model is a {ours}.")
    if head == "keep" and type(checkpoint.config) is not config_class:
        raise ValueError(
            f"{checkpoint.source} holds the weights of a {theirs}, of which a {ours} has the stem and stages, and no "
            f"more. To load those and begin afresh with the rest, pass head='reset' to keras_vit.load_weights."
        )


def build_with_weights(build, checkpoint, head="keep"):
    """The model that `build()` returns, with a checkpoint's weights in place of initial values."""
    with in_place_of_initial_values() as assign_later:
        model = build()
        try:
            target = target_of(model)
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
        adaptation = adapt(_read(checkpoint), checkpoint, target, head)
        if head == "reset":
            missing = [path for path in variables if path not in adaptation.weights]
            adaptation.initialized.extend(path for path in missing if path.startswith("pre_logits/"))
        initialized = set(adaptation.initialized)
        for path in [path for path in variables if path not in adaptation.weights]:
            if not initialized.isdisjoint((path, path.split("/")[0])):
                del variables[path]
        check(adaptation.weights, variables, _dtypes(model))
        protocol = _protocol(model, checkpoint, target, adaptation)
    except ValueError as error:
        raise ValueError(f"{checkpoint.source}: {error}") from error
    assign(adaptation.weights, variables)
    report = LoadReport(
        source=checkpoint.source,
        format=checkpoint.format,
        loaded=tuple(path for path in variables if path not in initialized),
        adapted=adaptation.adapted,
        skipped={**dict.fromkeys(checkpoint.skipped, "no part of the model"), **adaptation.skipped},
        initialized=tuple(adaptation.initialized),
    )
    _record(model, protocol, report)
    return report


def _dtypes(model):
    """{name of a layer: what it keeps its weights in, and what it computes in}"""
    return {layer.name: {layer.variable_dtype, layer.compute_dtype} for layer in vision_model(model).layers}


def target_of(model):
    """The `Target` that a model of this package is."""
    if is_quantized(model):
        raise ValueError(
            f"{model.name!r} was quantized by Keras, and no format of published weights knows how. Load and save them "
            f"before model.quantize; model.save keeps the quantized ones."
        )
    config = read_architecture(preprocessing_layer(model).architecture)
    if type(config) not in TAKEN_BY:
        raise ValueError(
            f"There are no published weights of {config.title}s as {model.name!r} is. Its own are kept by "
            f"model.save_weights and load_weights, in .weights.h5 files."
        )
    shapes = {path: tuple(variable.shape) for path, variable in canonical_variables(model).items()}
    grid_size = None
    if "position_embedding/embedding" in shapes:
        grid_size = vision_model(model).get_layer("position_embedding").grid_size
    has_variable_size = None in vision_model(model).input_shape[1:3]
    return Target(config, shapes, grid_size, has_variable_size)


def _check_classes(checkpoint, target, head):
    if head == "reset" or not target.has_top:
        return
    classes = target.shapes["predictions/kernel"][1]
    if checkpoint.classes == classes:
        return
    theirs = "no classifier" if checkpoint.classes is None else f"{checkpoint.classes} classes"
    raise ValueError(
        f"{checkpoint.source} has {theirs}, and the model has {classes} classes. For a classifier that starts at zero, "
        f"build the model with keras_vit.from_pretrained(..., classes={classes}), or call "
        f"keras_vit.load_weights(..., head='reset'). Otherwise build it with "
        f"{'' if checkpoint.classes is None else f'classes={checkpoint.classes} or '}include_top=False."
    )


def _read(checkpoint):
    """The weights of a checkpoint, if its images can be prepared as it says."""
    weights, pixels = checkpoint.read(), checkpoint.pixels or {}  # Reading closes the file.
    Preprocessing(**pixels)
    for name in ("mean", "std"):
        values = pixels.get(name)
        if isinstance(values, (tuple, list)) and len(values) != checkpoint.channels:
            raise ValueError(f"{name}={values} of the pixels does not fit images of {checkpoint.channels} channels.")
    return weights


def _protocol(model, checkpoint, target, adaptation):
    """How the model's images are prepared from now on: arguments of `Preprocessing`, or `None` for as before."""
    if checkpoint.pixels is None:
        return None
    channels = next(shape[2] for path, shape in target.shapes.items() if path in FIRST_KERNELS)
    pixels = adapt_pixels(checkpoint.pixels, vision_model(model).input_shape[1:3], checkpoint.image_size, channels)
    if isinstance(target.config, PanopticFPNConfig):  # A mask is of the whole image.
        pixels |= {"resize": preprocessing_layer(model).resize, "crop": None}
    if adaptation.initialized:
        pixels["label_space"] = None
    Preprocessing(**pixels)  # Refuses what is impossible before anything is written.
    return pixels


def _record(model, protocol, report):
    """Tells the model's `preprocessing` layer what was loaded, and the log what was changed."""
    layer = preprocessing_layer(model)
    layer.source = report.source
    layer.adaptations = {**report.adapted, **dict.fromkeys(report.initialized, "starts afresh")}
    if protocol is not None:
        layer.set_protocol(**protocol)
    for function in ("train_function", "test_function", "predict_function"):  # Compiled with the old pixels.
        setattr(model, function, None)
    for what, how in layer.adaptations.items():
        # A fresh classifier was asked for, by its number of classes or by head="reset".
        level = logging.INFO if what.startswith(HEAD) else logging.WARNING
        logger.log(level, "%s: %s: %s", report.source, what, how)
