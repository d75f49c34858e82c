"""Model cards: a README.md beside saved weights or an export, in the format of the Hugging Face Hub."""

import collections.abc
import dataclasses
import importlib.util
import json
import pathlib
import re
import typing
import unicodedata
import zlib

from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.checks import check_positive_integer, is_number, shown
from keras_vit.licences import hub_identifier, restriction
from keras_vit.outputs import output_of
from keras_vit.preprocessing import preprocessing_layer, vision_model
from keras_vit.weights.assign import canonical_arrays, checksum
from keras_vit.weights.catalogue.lookup import exact_entry

CARD = "README.md"
_TASKS = {
    "classes": "image-classification",
    "labels": "image-classification",
    "values": "image-classification",  # The Hub has no task for regression. transformers regresses in this pipeline.
    "class_map": "image-segmentation",
    "masks": "image-segmentation",
    "depth": "depth-estimation",
    "normals": "image-to-image",  # The Hub has no task for normals.
    "boxes": "object-detection",
    "embedding": "image-feature-extraction",
}
"""{kind of the output: the task's name on the Hub}"""
_DATASETS = {"imagenet1k": ("imagenet-1k", 1000), "imagenet21k": ("imagenet-21k", 21843)}
"""{label space: (name of its data set in model cards, number of classes)}"""
_NUM_NAMES = 20


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Measured metrics of a model, for its model card.

    Args:
        dataset: Name of the data set.
        metrics: {name of a metric: measured value}, such as `{"accuracy": 0.93}`.
        split: Split of the data set on which the metrics were measured.
        num_images: Number of images of this split, or `None`.

    Raises:
        ValueError: If a value has another type, there are no metrics, or a metric is not a finite number.

    Example:

    >>> import keras_vit
    >>> evaluation = keras_vit.Evaluation("pets", {"accuracy": 0.93}, num_images=3669)
    >>> model = keras_vit.ViT("Ti/16", num_layers=1, classes=37)
    >>> keras_vit.save_weights(model, "tiny", "timm", card=evaluation)  # doctest: +SKIP
    """

    dataset: str
    metrics: collections.abc.Mapping[str, float]
    split: str = "test"
    num_images: int | None = None

    def __post_init__(self):
        for name in ("dataset", "split"):
            if not _is_name(getattr(self, name)):
                raise ValueError(f"{name} must be a name in valid Unicode. Received: {shown(getattr(self, name))}")
        is_mapping = isinstance(self.metrics, collections.abc.Mapping)
        if not is_mapping or not self.metrics or not all(map(_is_metric, self.metrics.items())):
            raise ValueError(
                f"metrics must be a dictionary of names and finite numbers, such as {{'accuracy': 0.93}}. Received: "
                f"{shown(self.metrics)}"
            )
        if self.num_images is not None:
            check_positive_integer("num_images", self.num_images)


def _is_metric(item):
    name, value = item
    return _is_name(name) and is_number(value)


def _is_name(value):
    """Whether a value is text that is not empty and has no lone surrogates, which cannot be written to a file."""
    return isinstance(value, str) and value != "" and not any(unicodedata.category(c) == "Cs" for c in value)


def check_card(card, path, file):
    """Checks the argument `card`, and that a card may be written to `path`.

    Args:
        card: `True`, `False` or an `Evaluation`.
        path: Path of the card, a `pathlib.Path`.
        file: Name of the main file that the card describes.

    Raises:
        FileExistsError: If the file at `path` describes another file, or was written or changed by somebody else.
        ImportError: If a card is to be written, and `huggingface_hub` is not installed.
        ValueError: If `card` has another type.
    """
    if not isinstance(card, (bool, Evaluation)):
        raise ValueError(f"card must be True, False or a keras_vit.Evaluation. Received: {card!r}")
    if card and importlib.util.find_spec("huggingface_hub") is None:
        raise ImportError("A model card needs huggingface_hub: pip install huggingface_hub. Or write no card.")
    if card and path.exists() and not _is_own(path, file):
        raise FileExistsError(
            f"{path} is not the model card that keras_vit wrote for {file}, or it was changed. It is not replaced. "
            f"Move it, or choose another folder."
        )


def remove_card(path, file):
    """Removes the card at `path` if keras_vit wrote it for an earlier version of `file` and nobody changed it."""
    if path.is_file() and _is_own(path, file):
        path.unlink()


def _is_own(path, file):
    text, _, mark = path.read_text(encoding="utf-8", errors="replace").rpartition("<!--")
    return mark == _mark(text, file).removeprefix("<!--")


def _mark(text, file):
    """The last line of a card. It shows which file the card describes, and whether the text was changed."""
    return f"<!-- Model card of {file}, written by keras_vit ({zlib.crc32(text.encode()):08x}) -->\n"


def model_card(model, files, file, card, classes, precision="float32", transformers_class=None, class_names=None):
    """Returns the text of a model card. It contains code that loads the model if it is run in the folder of the card.

    Args:
        model: Model of this package, or a model that contains one.
        files: `CardFormat` of the files.
        file: Name of the main file.
        card: `True`, or an `Evaluation` of the model.
        classes: Number of classes, or `None` without a classifier.
        precision: Precision of the weights in the file.
        transformers_class: Name of the class of transformers that loads the files.
        class_names: Names of the classes, or `None` for the names in the model's label space.
    """
    described = _Described(model, classes, precision, card if isinstance(card, Evaluation) else None, class_names)
    sections = [
        f"# {_escaped(model.name)}",
        f"{described.kind}, written by keras_vit for {files.title}.",
        "## Architecture\n\n" + _table(_architecture(described)),
        "## Weights\n\n" + _weights(described, files),
        "## Preprocessing\n\n" + _preprocessing(described, files),
        "## Metrics\n\n" + _metrics(described),
        "## Loading\n\nRun the code in the folder of this file.\n\n"
        + _loading_code(described, files, file, transformers_class),
    ]
    text = f"---\n{_front_matter(described, files.library)}\n---\n\n" + "\n\n".join(sections) + "\n\n"
    return text + _mark(text, file)


class _Described:
    """The model of a card, with what several sections say about it."""

    def __init__(self, model, classes, precision, evaluation, class_names):
        layer = preprocessing_layer(model)
        self.model, self.layer, self.classes = model, layer, classes
        self.precision, self.evaluation = precision, evaluation
        self.label_space = class_names or _label_space(layer, classes)
        self.config: typing.Any = read_architecture(layer.architecture)
        self.origin = layer.origin or {}
        self.licence = self.origin.get("licence")
        self.entry = exact_entry(self.origin.get("source", ""))
        known = self.origin.get("checksum")
        has_same_weights = known is not None and known == checksum(canonical_arrays(model))
        self.is_unchanged = precision == "float32" and vision_model(model) is model and has_same_weights
        self.kind = f"{self.config.title} {self.entry.variant}" if self.entry else self.config.title

    @property
    def task(self):
        """The task, as the Hub names it in the field `pipeline_tag`."""
        return _TASKS[output_of(self.model).kind]

    @property
    def address(self):
        """Address of the published weights, or `None`."""
        source = self.origin.get("source") or ""
        return self.entry.url if self.entry else source if "://" in source else None


def _label_space(layer, classes):
    """The label space of a model, or `None` if it has another number of classes than the model.

    The numbers differ, for example, after a new head was added to the model.
    """
    if isinstance(layer.label_space, str):
        return layer.label_space if _DATASETS.get(layer.label_space, ("", None))[1] == classes else None
    return layer.class_names(classes)


def _front_matter(described, library):
    """The metadata of the Hub, in YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    repository = re.match(r"hf://([^/@]+/[^/@]+)", described.address or "")
    # Whoever changed the weights chooses the licence of the changed weights, so the card does not state it. It states
    # the licence of the published weights if this licence also restricts the use of changed weights.
    has_licence = described.licence and (described.is_unchanged or restriction(described.licence))
    licence = (hub_identifier(described.licence) or "other") if has_licence else None
    evaluation = described.evaluation
    results = [
        EvalResult(
            task_type=described.task,
            dataset_type=_visible(evaluation.dataset),
            dataset_name=_visible(evaluation.dataset),
            dataset_split=_visible(evaluation.split),
            metric_type=_visible(name),
            metric_value=float(value),
        )
        for name, value in (evaluation.metrics.items() if evaluation else ())
    ]
    return ModelCardData(
        license=licence,
        license_name=_visible(described.licence) if licence == "other" else None,
        library_name=library,
        pipeline_tag=described.task,
        tags=["keras-vit", *(["vision-transformer"] if isinstance(described.config, ViTConfig) else [])],
        base_model=repository and repository[1],
        datasets=[_DATASETS[described.label_space][0]] if isinstance(described.label_space, str) else None,
        model_name=_visible(described.model.name) if results else None,
        eval_results=results or None,
    ).to_yaml()


def _table(rows):
    """A table of two columns of Markdown."""
    lines = (f"| {name} | {value} |" for name, value in rows)
    return "\n".join(["| | |", "|---|---|", *lines])


def _escaped(text):
    """Escapes Markdown and joins lines. Names of classes, models and sources come from users and their files."""
    return " ".join(re.sub(r"([\\`*_\[\]<|])", r"\\\1", _visible(str(text))).split())


def _visible(text):
    """Removes control characters, such as marks that reverse the direction of a text, and lone surrogates."""
    joiners = "\u200c\u200d"  # They are part of words and emojis.
    hidden = ("Cc", "Cf", "Cs")
    return "".join(c for c in text if c.isspace() or c in joiners or unicodedata.category(c) not in hidden)


def _names(label_space):
    """The classes of a label space, in brackets."""
    if isinstance(label_space, (list, tuple)):
        label_space = ", ".join(
            [*map(str, label_space[:_NUM_NAMES]), *(["…"] if len(label_space) > _NUM_NAMES else [])]
        )
    return f" ({_escaped(label_space)})" if label_space else ""


def _architecture(described):
    _, height, width, channels = vision_model(described.model).input_shape
    size = "any size" if None in (height, width) else f"{height} x {width} pixels"
    rows = [
        ("kind", described.kind),
        ("parameters", f"{described.model.count_params():,}"),
        ("images", f"{size}, {channels} channels"),
    ]
    if described.classes is not None:
        rows.append(("classes", f"{described.classes}{_names(described.label_space)}"))
    for field in dataclasses.fields(described.config):
        value = getattr(described.config, field.name)
        if value != field.default:
            rows.append((f"`{field.name}`", f"`{value}`"))
    return rows


def _weights(described, files):
    source = described.origin.get("source")
    if source is None:
        return "It is not recorded from which weights the model comes. Their licence is not known."
    link = f" ({described.address.replace('hf://', 'https://huggingface.co/')})" if described.entry else ""
    paper = (
        f", [paper](https://arxiv.org/abs/{described.entry.paper})" if described.entry and described.entry.paper else ""
    )
    if described.is_unchanged:
        state = "The weights are unchanged."
    elif described.origin["checksum"] is None:
        state = "It is not recorded whether the weights were changed."
    else:
        state = "The weights differ from the source: they were adapted, fine-tuned, extended or rounded."
    if not described.entry and "://" not in source:  # The folders of a local file are private.
        source = pathlib.PureWindowsPath(source).name or source
    lines = [f"* Source: {_escaped(source)}{link}{paper}. {state}"]
    lines += [
        f"* Adapted: {_escaped(name)}: {_escaped(change)}" for name, change in described.layer.adaptations.items()
    ]
    if described.precision != "float32":
        # An int8 SavedModel only stores its weights in 8 bits.
        computes = described.precision == "int8" and files.computes_in_int8
        lines.append(f"* The file {'computes' if computes else 'stores weights'} in {described.precision}.")
    if described.licence is None:
        return "\n".join([*lines, "* Licence: not known. Ask the publisher of the source."])
    lines.append(f"* Licence of the source: {_escaped(described.licence)}. {restriction(described.licence)}".rstrip())
    if not described.is_unchanged:
        restricted = "The restriction also applies to these weights."
        lines[-1] += (
            f" {restricted if restriction(described.licence) else 'The licence of these weights is not stated here.'}"
        )
    return "\n".join(lines)


def _preprocessing(described, files):
    layer = described.layer
    steps = []
    if layer.resize is not None:
        size = layer.resize if isinstance(layer.resize, int) else "{} x {}".format(*layer.resize)
        side = "its short side" if isinstance(layer.resize, int) else "it"
        steps.append(f"Resize the image so that {side} has {size} pixels ({layer.interpolation}, antialiased).")
    if layer.crop is not None:
        steps.append("Cut out the central {} x {} pixels.".format(*layer.crop))
    steps.append(f"Compute `(pixel / 255 - mean) / std` with mean {layer.mean} and std {layer.std}.")
    note = files.preprocessing
    return "\n".join([*(f"{number}. {step}" for number, step in enumerate(steps, 1)), *(["", note] if note else [])])


# Fields of `ViTConfig` that the weights do not show.
_UNSEEN = ("num_heads", "mlp", "layer_norm_epsilon", "rotary", "position_placement", "token_merging")


def _has_published_settings(described):
    """Whether a model also has the published settings that its weights do not show."""
    config, published = described.config, described.entry.config
    return not described.layer.adaptations and all(
        getattr(config, name) == getattr(published, name) for name in _UNSEEN
    )


def _metrics(described):
    lines = []
    if evaluation := described.evaluation:
        images = f" ({evaluation.num_images:,} images)" if evaluation.num_images else ""
        rows = [(_escaped(name), f"{value:.4f}") for name, value in evaluation.metrics.items()]
        text = f"Measured on the {_escaped(evaluation.split)} split of {_escaped(evaluation.dataset)}{images}"
        before = "" if described.precision == "float32" else f", before the conversion to {described.precision}"
        lines.append(f"{text}{before}:\n\n{_table(rows)}")
    if described.entry and described.entry.top1 and described.is_unchanged and _has_published_settings(described):
        lines.append(
            f"Published for these weights: {described.entry.top1:.2f} % top-1 accuracy on the validation set of "
            f"ImageNet-1k ({described.entry.top1_protocol}). It was not measured with these files."
        )
    return "\n\n".join(lines) or "No metrics were measured."


def _loading_code(described, files, file, transformers_class):
    """The section that shows how to load the files, in Markdown."""
    vision = vision_model(described.model)
    positions = next((layer for layer in vision.layers if layer.name == "position_embedding"), None)
    grid_size = getattr(positions, "grid_size", None)
    _, height, width, channels = vision.input_shape
    values = {
        "file": json.dumps(file, ensure_ascii=False),
        "num_heads": getattr(described.config, "num_heads", None),
        "grid_size": "" if grid_size is None else f", grid_size={tuple(grid_size)}",
        "transformers_class": transformers_class,
        "keras_hub_class": "Backbone" if described.classes is None else "ImageClassifier",
        "shape": (1, height or 224, width or 224, channels),
    }
    own = "keras_vit cannot load these files. It loads the `.keras` file of the model."
    if files.own_code:
        own = f"In keras_vit:\n\n```python{files.own_code.format(**values)}```"
    return f"In {files.title}:\n\n```python{files.code.format(**values)}```\n\n{own}"
