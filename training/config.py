"""What a run is: frozen dataclasses, checked by pydantic when they are made, and changed by `section.field=value`.

Every field has a description with its unit, which `python -m training train RECIPE --show` prints.
"""

import dataclasses
import difflib
import functools
import inspect
import json
import re
import typing
from typing import Annotated, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from keras_vit.config import ViTConfig, get_variant
from keras_vit.layers import PatchEmbedding
from training.errors import InputError

_section = functools.partial(
    pydantic.dataclasses.dataclass,
    frozen=True,
    kw_only=True,
    config=pydantic.ConfigDict(extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False),
)
Fraction = Annotated[float, Field(ge=0, lt=1)]


def _variant_by_name(value):
    return get_variant(value) if isinstance(value, str) else value


@_section
class Model:
    """The model that is trained. It takes pixels from 0 to 255 and normalises them inside."""

    config: Annotated[ViTConfig, pydantic.BeforeValidator(_variant_by_name)] = Field(
        description="a published variant such as B/16, or the fields of keras_vit.ViTConfig"
    )
    input_shape: tuple[PositiveInt, PositiveInt, Literal[1, 3]] = Field(
        (224, 224, 3), description="height and width in pixels, and 3 channels for colour or 1 for gray"
    )

    def __post_init__(self):
        if self.config.pooling is None:
            raise ValueError("model.config.pooling must not be none: a classifier needs one vector an image")
        if self.config.stem is None:
            patches = PatchEmbedding(self.config.hidden_dim, self.config.patch_size, self.config.crop_to_patches)
            patches.compute_output_shape((None, *self.input_shape))  # Refuses a size that does not divide into patches.


@_section
class Data:
    """Where the images come from."""

    dataset: str = Field(description="digits, folder, or the name of a TFDS data set with an image and a label")
    directory: str | None = Field(None, description="for folder: the directory of class-named folders")
    tfds_directory: str | None = Field(None, description="where TFDS keeps its data; none: its own default")
    validation_fraction: Fraction = Field(0.1, description="part of the training images kept for validation")
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="for folder: part of each class held out for the test"
    )
    cache: bool = Field(True, description="keep the decoded images in memory")
    shuffle_buffer: PositiveInt = Field(10_000, description="images that are shuffled at a time")

    def __post_init__(self):
        if self.directory is not None and self.dataset != "folder":
            raise ValueError(f"data.directory is read for data.dataset=folder only. Received: dataset={self.dataset!r}")


@_section
class Augment:
    """Random changes of the training images. Ranges are symmetric around no change."""

    flip: bool = Field(False, description="mirror every other image left to right")
    translation: Fraction = Field(0.0, description="largest shift, as a fraction of the image's side")
    rotation: Annotated[float, Field(ge=0, le=180)] = Field(0.0, description="largest turn, in degrees")
    scale: Fraction = Field(0.0, description="largest change of the size, as a fraction")
    fill: Literal["reflect", "black"] = Field("reflect", description="what appears beyond the image's border")


@_section
class Optimizer:
    """AdamW. Only kernels decay; biases, norms, positions and tokens do not."""

    learning_rate: PositiveFloat = Field(1e-3, description="at its peak")
    weight_decay: NonNegativeFloat = Field(0.1, description="a kernel shrinks by this times the learning rate a step")
    clip_norm: PositiveFloat | None = Field(1.0, description="largest norm of all gradients together; none: no limit")


@_section
class Schedule:
    """Linear warm-up, then a cosine down to zero."""

    warmup: Fraction = Field(0.05, description="part of all steps until the learning rate is at its peak")


@_section
class Fit:
    """How the model is fitted."""

    epochs: PositiveInt = Field(description="passes over the training images")
    batch_size: PositiveInt = Field(description="images in a step")
    label_smoothing: Fraction = Field(0.0, description="probability spread evenly over all classes")
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = Field(
        "float32", description="of the computation; weights are float32 always"
    )


@_section
class Recipe:
    """Everything that decides a run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$", description="the first part of the run folder's name")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="of the initial weights, the order of the images, and all randomness"
    )
    model: Model
    data: Data
    augment: Augment = Augment()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    fit: Fit


_ADAPTER = pydantic.TypeAdapter(Recipe)
_VIT_CONFIG_ARGUMENTS = inspect.getdoc(ViTConfig)


def to_dict(recipe):
    """The recipe as nested dictionaries of JSON's types."""
    return _ADAPTER.dump_python(recipe, mode="json")


def from_dict(fields):
    """The recipe that `to_dict` wrote. Raises an InputError that names each field that does not fit."""
    _check_names(fields)
    try:
        return _ADAPTER.validate_python(fields)
    except pydantic.ValidationError as error:
        raise InputError("\n".join(map(_explain, error.errors()))) from None


def override(recipe, assignments):
    """A recipe with some fields changed.

    Args:
        recipe: `Recipe`
        assignments: Strings `section.field=value`, applied in their order. Several values are separated by commas;
            `none` stands for no value.

    Returns:
        The new `Recipe`.

    Raises:
        InputError: If a field does not exist (with the nearest that do), or a value is of the wrong type or impossible.
    """
    fields = to_dict(recipe)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator:
            raise InputError(f"{assignment!r} does not say what to change. Write section.field=value.")
        *sections, name = path.split(".")
        section = fields
        for key in sections:
            section = section.get(key) if isinstance(section, dict) else None
        if not isinstance(section, dict) or name not in section:
            raise _unknown(path, fields)
        section[name] = (
            _section_value(path, text) if isinstance(section[name], dict) else _value(text, _field(path).type)
        )
    return from_dict(fields)


def leaves(fields, prefix=""):
    """The (dotted name, value) of every field, section by section."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def describe(recipe):
    """The recipe as lines `section.field=value`, each with what it means."""
    rows = [(f"{name}={as_text(value)}", _description(name)) for name, value in leaves(to_dict(recipe))]
    width = max(len(assignment) for assignment, _ in rows)
    return "\n".join(f"{assignment:<{width}}  {description}".rstrip() for assignment, description in rows)


def _section_value(path, text):
    if path == "model.config":
        try:
            return dataclasses.asdict(get_variant(text))
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
    raise InputError(f"{path} is a section. Set one of its fields: {path}.<field>=value.")


def _value(text, field_type):
    """What a text means for a field; where it means nothing, the text itself, which pydantic then refuses."""
    accepted = typing.get_args(field_type) or (field_type,)
    if text.lower() == "none" and (str not in accepted or type(None) in accepted):
        return None
    if str in accepted:
        return text
    if bool in accepted:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return [_value(part, None) for part in text.split(",")] if "," in text else text
    return text if isinstance(value, bool) else value


def as_text(value):
    """A value as it is written in an assignment."""
    return ",".join(map(as_text, value)) if isinstance(value, list) else "none" if value is None else str(value)


def _check_names(fields, section=Recipe, prefix=""):
    """Refuses names that no section has. (pydantic does so too, but without the nearest ones, and not in ViTConfig.)"""
    known = {field.name: field.type for field in dataclasses.fields(section)}
    for name, value in fields.items():
        if name not in known:
            raise _unknown(f"{prefix}{name}", dict.fromkeys(f"{prefix}{known_name}" for known_name in known))
        inner = ViTConfig if name == "config" else known[name]
        if isinstance(value, dict) and dataclasses.is_dataclass(inner):
            _check_names(value, inner, f"{prefix}{name}.")


def _unknown(path, fields):
    names = [name for name, _ in leaves(fields)]
    near = difflib.get_close_matches(path, names, n=3, cutoff=0.5)
    by_last = {name.rpartition(".")[2]: name for name in names}
    near += [by_last[last] for last in difflib.get_close_matches(path.rpartition(".")[2], by_last, n=2)]
    hint = f" Did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?" if near else ""
    return InputError(f"{path} is not a field of a recipe.{hint} All fields: python -m training train RECIPE --show")


def _explain(error):
    path = ".".join(map(str, error["loc"]))
    message = error["msg"].removeprefix("Value error, ")
    return f"{path}: {message}" + ("" if isinstance(error["input"], dict) else f". Received: {error['input']!r}")


def _description(path):
    field = _field(path)
    if path.startswith("model.config."):
        [text] = re.findall(rf"^    {field.name}: (.*?)^(?:    )?\S", _VIT_CONFIG_ARGUMENTS, re.DOTALL | re.MULTILINE)
        return " ".join(text.split())
    return field.default.description


def _field(path):
    section = Recipe
    for name in path.split("."):
        field = {field.name: field for field in dataclasses.fields(section)}[name]
        section = ViTConfig if name == "config" else field.type
    return field
