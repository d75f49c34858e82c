"""Reads the tables of settings, such as `keras_hub.toml`, and checks and reads settings that several formats share."""

import importlib.resources
import tomllib

from keras_vit.checks import MAX_SIDE, check_size, did_you_mean, problem_of_class_names, shown
from keras_vit.outputs import Output

PREPARE_YOURSELF = (
    " To load the weights anyway, change the setting in the file to a supported value, and prepare the images yourself."
)
"""Advice for the image preparation, which does not change the weights."""
_PROBLEM_OF = {"labels": "multi_label_classification", "values": "regression"}
_PROBLEM_TYPES = (None, "single_label_classification", *_PROBLEM_OF.values())


def read_toml(file):
    """Contents of a TOML file, whose path is relative to this folder. TOML has no `None`; it is written as "null"."""
    return _with_none(tomllib.loads(importlib.resources.files(__package__).joinpath(file).read_text("utf-8")))


def _with_none(value):
    if isinstance(value, dict):
        return {name: _with_none(each) for name, each in value.items()}
    return [_with_none(each) for each in value] if isinstance(value, list) else None if value == "null" else value


def pair(size):
    """(height, width) of an image size, which may be one number; `None` remains `None`."""
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise ValueError(f"An image size must be one number or (height, width). Received: {shown(size)}")
    return tuple(check_size("Each side of an image", side, MAX_SIDE) for side in sides)


def check_settings(settings, **facts):
    """Checks that a configuration fits the arrays of its file.

    Args:
        settings: Contents of the configuration.
        **facts: Values derived from the arrays. If `settings` contains one of these names, both values must be equal.
    """
    for name, fact in facts.items():
        value = settings.get(name)
        value = pair(value) if isinstance(fact, tuple) else value
        if value is not None and value != fact:
            raise ValueError(
                f"The configuration beside the weights belongs to another model: it contains {name}={shown(value)}, "
                f"but the arrays have {fact!r}."
            )


def check_supported(file, settings, supported, advice="", strict=False):
    """Checks the values of settings, and finds the settings that are unknown. `None` is the same as no setting.

    Args:
        file: Name of the file or of the part of it that contains the settings.
        settings: Contents of the configuration.
        supported: {setting: list of its supported values}. The entry `any_value` lists the settings of which each value
            is supported. Together, these are all settings that the project writes.
        advice: End of the error message.
        strict: Whether unknown settings are refused, and `None` is a value like any other. The settings then define the
            architecture.

    Returns:
        {setting: text that names its value} for all unknown settings. They could change the outputs.

    Raises:
        ValueError: If a value is not supported.
    """
    ignored, supported = {}, dict(supported)
    with_any_value = supported.pop("any_value")
    for name, value in settings.items():
        if name in with_any_value or (value is None and not strict):
            continue
        if name not in supported and strict:
            hint = did_you_mean(name, [*with_any_value, *supported])
            raise ValueError(f"{file} contains the unknown setting {name}={shown(value)}.{hint}")
        if name not in supported:
            ignored[name] = f"{shown(value)} in {file} is unknown and has no effect"
        elif value not in supported[name]:
            accepted = " or ".join(map(repr, supported[name]))
            raise ValueError(
                f"{file} contains {name}={shown(value)}. This package supports only {name}={accepted}.{advice}"
            )
    return ignored


def usable_class_names(names, file, setting):
    """(names of classes that can be used or `None`, what `LoadReport.ignored` contains about them)."""
    if names is None or not (problem := problem_of_class_names(names)):
        return names, {}
    return None, {setting: f"the labels in {file} are left out, because {problem}"}


def output_of_problem(config, classes):
    """What the outputs of a head mean, a `keras_vit.Output`, as in the pipelines of transformers.

    Args:
        config: Contents of a `config.json` with or without a `problem_type`.
        classes: Number of outputs of the classifier.
    """
    kind = config.get("problem_type")
    if kind not in _PROBLEM_TYPES:
        accepted = ", ".join(map(repr, _PROBLEM_TYPES[1:]))
        raise ValueError(f"config.json contains problem_type={shown(kind)}. Accepted: {accepted}")
    if kind == "regression":
        return Output("values")
    return Output("labels" if kind == "multi_label_classification" or classes == 1 else "classes")


def write_problem(kind):
    """The setting `problem_type` for a kind of `keras_vit.Output`, in a dictionary that is empty for classes."""
    return {"problem_type": _PROBLEM_OF[kind]} if kind in _PROBLEM_OF else {}
