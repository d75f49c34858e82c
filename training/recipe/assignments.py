"""Reads recipes from text: assignments `section.field=value`, and the JSON that a run writes."""

import dataclasses
import inspect
import re
import types
import typing
from typing import Annotated, Any

import pydantic
import pydantic_core

from keras_vit.architectures.base import class_with
from keras_vit.architectures.text import TextConfig
from keras_vit.architectures.vision_transformer import ViTConfig, get_variant
from keras_vit.checks import nearest_names
from training.errors import InputError, without_queries
from training.recipe.config import Recipe, to_dict, validate

_VIT_CONFIGS = (["model", "config"], ["model", "changes"])
_ARGUMENTS = ("model.arguments.", "model.head_arguments.")
_CONFIGS = {("Model", "config"): ViTConfig, ("Model", "changes"): ViTConfig, ("Text", "config"): TextConfig}
_REMOVABLE = ("model.arguments", "model.head_arguments", "model.changes", "text.config")
_INTEGER_LIMIT = 2**32
_BOOLEANS = {"true": True, "false": False}
_ABBREVIATIONS = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "bs": "fit.batch_size",
    "epoch": "fit.epochs",
}


class _RunInfo(pydantic.BaseModel, extra="allow"):
    """The fields of a `recipe.json` that this package reads. All other fields are information for people."""

    recipe: dict[str, Any]
    class_names: list[str] = []
    num_images: dict[str, int] = {}
    result: dict[str, Any] = {}


def read_run_info(path):
    """The `recipe.json` of a run, as a dictionary. Raises an InputError if it cannot be read."""
    try:
        return _RunInfo.model_validate_json(path.read_bytes()).model_dump(exclude_unset=True)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except pydantic.ValidationError as error:
        raise InputError(f"{path} is not the recipe.json of a run. {explain(error)}") from None


def from_dict(fields):
    """Converts the result of `to_dict` back to a recipe. Raises an InputError that lists each invalid field."""
    _check_names(fields)
    try:
        recipe = validate(fields)
    except pydantic.ValidationError as error:
        raise InputError(explain(error, fields)) from None
    for name, value in leaves(fields):
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and abs(number) >= _INTEGER_LIMIT:  # Too large for TensorFlow.
                raise InputError(f"{name} must be below {_INTEGER_LIMIT:,}. Received: {value!r}")
    return recipe


def override(recipe, assignments):
    """A recipe with some fields changed.

    Args:
        recipe: `Recipe`
        assignments: Strings `section.field=value`, applied in this order. Elements of lists are separated by commas.
            `None` is written as `none`. `model.arguments=none`, `model.changes=none` and so on remove the fields of
            these sections. A new `fit.epochs` removes the recipe's `fit.steps`, and a new `fit.steps` removes its
            `fit.epochs`. A new `augment.crop` removes the recipe's settings of its crop.

    Returns:
        The new `Recipe`.

    Raises:
        InputError: If a field does not exist (similar names are suggested), or a value is invalid.
    """
    fields = to_dict(recipe)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator:
            raise InputError(f"{assignment!r} is not an assignment. Write section.field=value.")
        section, name = _find_section(path, fields)
        section[name] = _parse(path, text, is_section=isinstance(section.get(name), dict))
    fit, assigned = fields["fit"], {assignment.partition("=")[0] for assignment in assignments}
    for name, other in (("epochs", "steps"), ("steps", "epochs")):
        if f"fit.{name}" in assigned and f"fit.{other}" not in assigned and fit[name] is not None:
            fit[other] = None
    if fields["augment"]["crop"] != recipe.augment.crop:
        for name in {"crop_from", "crop_area", "scale_range"} - {path.removeprefix("augment.") for path in assigned}:
            fields["augment"].pop(name, None)
    return from_dict(fields)


def replaced_by_variant(recipe, changed, assignments):
    """A sentence about fields that `model.config=VARIANT` has replaced, or `None` if there are none."""
    old, new = recipe.model.config, changed.model.config
    variants = [text for text in assignments if text.startswith("model.config=")]
    if not variants or old is None or new is None:
        return None
    lost = {
        field.name: getattr(old, field.name)
        for field in dataclasses.fields(ViTConfig)
        if getattr(old, field.name) not in (field.default, getattr(new, field.name))
        and field.default is not dataclasses.MISSING
    }
    if not lost:
        return None
    names = ", ".join(f"model.config.{name}={as_text(value)}" for name, value in lost.items())
    return f"{variants[-1]} replaces all fields of the recipe's model.config. The recipe had {names}."


def _find_section(path, fields):
    """The section of a field, as a dictionary, and the field's name. Adds a stem or rotary positions if necessary."""
    *sections, name = path.split(".")
    classes = ViTConfig.parts().get(sections[-1], ()) if sections[:-1] in _VIT_CONFIGS else ()
    section = fields
    for key in sections:
        parent, section = section, section.get(key) if isinstance(section, dict) else None
    if classes and isinstance(parent, dict):
        section = parent[sections[-1]] = section or {}
    names = [*section] if isinstance(section, dict) else []
    if sections in (["model", "arguments"], ["model", "head_arguments"]):
        names = [name]  # `check_function` and `build_head` check the names of arguments.
    elif sections in (["model", "changes"], ["text", "config"]):
        names = _names(ViTConfig if sections[0] == "model" else TextConfig)
    elif classes and section is not None:
        names = _names(class_with(section, classes)) if section else _names(*classes)
    if name not in names:
        if section and name in _names(*classes):
            part, known = ".".join(sections), ", ".join(names)
            raise InputError(f"{part} is of a kind with the fields {known}. To replace it, first set {part}=none.")
        raise _unknown_field(path, [*(".".join([*sections, each]) for each in names), *dict(leaves(fields))])
    return section, name


def _names(*classes):
    """The names of the fields of dataclasses."""
    return [field.name for each in classes for field in dataclasses.fields(each)]


def leaves(fields, prefix=""):
    """Yields (dotted name, value) for each field, section by section."""
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def annotated_fields(recipe):
    """The recipe as lines `section.field=value`, each with a description."""
    rows = [(f"{name}={as_text(value)}", _description(name)) for name, value in leaves(to_dict(recipe))]
    width = max(len(assignment) for assignment, _ in rows)
    return "\n".join(f"{assignment:<{width}}  {description}".rstrip() for assignment, description in rows)


def _parse(path, text, is_section):
    if path == "model.config" and text.lower() != "none":
        try:
            return dataclasses.asdict(get_variant(text))
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
    if path in _REMOVABLE and text.lower() == "none":
        return {}
    if path.startswith(_ARGUMENTS):
        return _BOOLEANS.get(text.lower(), _value(text, ()))  # The model function checks the types.
    accepted = _accepted(_find_field(path)[1].type)
    classes = [each for each in accepted if dataclasses.is_dataclass(each)]
    if (is_section or classes) and not (text.lower() == "none" and type(None) in accepted):
        fields = f" Fields: {', '.join(_names(*classes))}." if classes else ""
        raise InputError(f"{path} is a section. Set its fields: {path}.<field>=value.{fields}")
    return _value(text, accepted)


def _accepted(field_type):
    """The types and literal values that a field may have."""
    if typing.get_origin(field_type) is Annotated:
        return _accepted(typing.get_args(field_type)[0])
    if isinstance(field_type, types.UnionType):
        return tuple(accepted for part in typing.get_args(field_type) for accepted in _accepted(part))
    return typing.get_args(field_type) or (field_type,)


def _value(text, accepted):
    """Converts a text to an accepted value of a field. If this fails, returns the text, which pydantic then refuses."""
    if text in accepted:
        return text
    if text.lower() == "none" and (str not in accepted or type(None) in accepted):
        return None
    if Ellipsis in accepted and not text:
        return []
    if str in accepted:
        return text.split(",") if Ellipsis in accepted else text
    if bool in accepted:
        return _BOOLEANS.get(text.lower(), text)
    try:
        value = pydantic_core.from_json(text)
    except ValueError:
        return [_value(part, ()) for part in text.split(",")] if "," in text else text
    if isinstance(value, bool):
        return text
    return [value] if Ellipsis in accepted and not isinstance(value, list) else value


def as_text(value):
    """The text of a value in an assignment."""
    if isinstance(value, list):
        return ",".join(map(as_text, value))
    return "none" if value in (None, {}) else without_queries(str(value))


def _check_names(fields, section=Recipe, prefix=""):
    """Checks the names of fields, because pydantic suggests no similar names and does not check a ViTConfig."""
    known = {field.name: field.type for field in dataclasses.fields(section)}
    for name, value in fields.items():
        if name not in known:
            raise _unknown_field(f"{prefix}{name}", [f"{prefix}{each}" for each in known])
        section_type = _section_type(section, name, known[name], value) if isinstance(value, dict) else None
        if section_type:
            _check_names(value, section_type, f"{prefix}{name}.")


def _unknown_field(path, names):
    """The error about a field that does not exist. Suggests fields with similar names out of `names`."""
    last = path.rpartition(".")[2]
    similar = [_ABBREVIATIONS[last]] if last in _ABBREVIATIONS else []
    similar += nearest_names(path, names)
    by_last = {name.rpartition(".")[2]: name for name in names}
    similar += [by_last[name] for name in nearest_names(last, by_last, count=2, cutoff=0.6)]
    hint = f" Did you mean {' or '.join(list(dict.fromkeys(similar))[:3])}?" if similar else ""
    return InputError(f"{path} is not a field of a recipe.{hint} All fields: python -m training train RECIPE --show")


def explain(error, recipe=None):
    """The message of a pydantic.ValidationError, a line for each field. `recipe`: the fields, if they are a recipe."""
    details = [(_location(detail["loc"], recipe), detail) for detail in error.errors()]
    return "\n".join(_explain(location, detail) for location, detail in details if location is not None)


def _location(keys, recipe):
    """The dotted name of a field.

    Args:
        keys: The keys of a pydantic.ValidationError. A field of a recipe may have one of several classes. In this case,
            the name of the class is also a key.
        recipe: The fields of the recipe, or `None`.

    Returns:
        The name. `None` if a key is not the class that most of the field's values belong to.
    """
    if recipe is None:
        return ".".join(map(str, keys))
    names, value = [], recipe
    for key in map(str, keys):
        if key[:1].isupper():  # A class. Names of fields are lower case.
            given = value if isinstance(value, dict) else ()
            section, field = _find_field(".".join(names))
            if key != _section_type(section, names[-1], field.type, given).__name__:
                return None
        else:
            names.append(key)
            value = value.get(key) if isinstance(value, dict) else None
    return ".".join(names)


def _explain(location, error):
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "string_pattern_mismatch" and error["loc"][-1] != "name":
        message = "A duration is written as 5%, 10000 steps or 2.5 epochs"
    if not isinstance(error["input"], (dict, bytes)):  # A whole section or file would be too long to print.
        message += f". Received: {error['input']!r}"
    return f"{location}: {message}" if location else message


def _description(path):
    if path.startswith(_ARGUMENTS):
        return "argument of model.function; see its documentation"
    section, field = _find_field(path)
    if isinstance(field.default, pydantic.fields.FieldInfo):
        return field.default.description
    documentation = inspect.cleandoc(section.__doc__)
    [text] = re.findall(rf"^    {field.name}: (.*?)^(?:    )?\S", documentation, re.DOTALL | re.MULTILINE)
    return " ".join(text.split())


def _find_field(path):
    """The dataclass and the `dataclasses.Field` of a field, which is given by its dotted name."""
    next_section = Recipe
    names = path.split(".")
    for i, name in enumerate(names):
        section = next_section
        field = {field.name: field for field in dataclasses.fields(section)}[name]
        next_section = _section_type(section, name, field.type, names[i + 1 :])
    return section, field


def _section_type(section, name, field_type, names):
    """The dataclass of a field that is a section, the one with most of these names. `None` for all other fields."""
    if (section.__name__, name) in _CONFIGS:
        return _CONFIGS[section.__name__, name]
    return class_with(names, filter(dataclasses.is_dataclass, (field_type, *typing.get_args(field_type))))
