"""Checks whether a format of weights can express a `ViTConfig`, whose fields list the values for each format."""

import dataclasses

from keras_vit.architectures.base import ANY
from keras_vit.architectures.vision_transformer import ViTConfig


def check_expressible(owner, config, formats, conflicts=()):
    """Checks that a format can express a model.

    Args:
        owner: Project that defines the format. It is named in the error message.
        config: `ViTConfig`.
        formats: Names of the format in the fields of `ViTConfig`. The first one that a field lists defines its values.
            All other fields must have their defaults, as in a plain ViT. If a field or value is added to `ViTConfig`,
            it is therefore refused until a format lists it.
        conflicts: Pairs (description of a combination that the format cannot express, whether the model has it).

    Raises:
        ValueError: If the format cannot express the model; the message lists the fields and combinations.
    """
    refuse(owner, problems_of(config, formats, conflicts))


def problems_of(config, formats, conflicts=()):
    """The fields and combinations that a format cannot express. The arguments are those of `check_expressible`."""
    problems = []
    for field in _fields_in_files():
        values = field.metadata["expressed_by"]
        accepted = next((values[name] for name in formats if name in values), (field.default,))
        problems += _problem(field.name, getattr(config, field.name), accepted)
    return problems + [conflict for conflict, is_present in conflicts if is_present]


def _fields_in_files():
    """The fields of `ViTConfig` that change the outputs and do not follow from the sizes of the arrays."""
    for field in dataclasses.fields(ViTConfig):
        if field.metadata["in_files"] and field.default is not dataclasses.MISSING:
            yield field


def _problem(name, value, accepted):
    if accepted is ANY or value in accepted or type(value) in accepted:
        return []
    names = (each.__name__ if isinstance(each, type) else repr(each) for each in accepted)
    return [f"{name}={value!r} (accepted: {' or '.join(names)})"]


def refuse(owner, problems):
    """Raises a ValueError if there are any problems."""
    if problems:
        raise ValueError(
            f"{owner} cannot express {', '.join(problems)}. The model was not saved. Choose another format, or change "
            f"these settings of the model."
        )


def check_published(config):
    """Checks that a format of published weights can express a `ViTConfig`. Configs of other classes are accepted."""
    problems = []
    for field in _fields_in_files() if isinstance(config, ViTConfig) else ():
        listed = field.metadata["expressed_by"].values()
        accepted = dict.fromkeys(
            [field.default, *(value for values in listed if values is not ANY for value in values)]
        )
        problems += [] if ANY in listed else _problem(field.name, getattr(config, field.name), accepted)
    if problems:
        raise ValueError(
            f"No format of published weights can express {', '.join(problems)}. Build the model with weights=None or "
            f"with your own .weights.h5 file, or change these settings."
        )
