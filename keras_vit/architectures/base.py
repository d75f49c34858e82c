"""The base class of the configs of all models."""

import dataclasses
from typing import ClassVar

from keras_vit.architectures.spellings import FACTORY_ARGUMENTS, argument_hint
from keras_vit.checks import did_you_mean, shown


@dataclasses.dataclass(frozen=True)
class Config:
    """The base class of all configs. An unknown field raises a TypeError that suggests similar names."""

    def __new__(cls, *_, **fields):
        cls.check_names(fields)
        return super().__new__(cls)

    @classmethod
    def check_names(cls, names, arguments=()):
        """Raises a TypeError if a name is not the name of a field. `arguments`: further names that it may suggest."""
        fields = [field.name for field in dataclasses.fields(cls)]
        for name in names:
            if name not in fields:
                hint = argument_hint(name, [*fields, *arguments]) or did_you_mean(name, [*fields, *arguments])
                raise TypeError(f"{shown(name)} is not a field of {cls.__name__}.{hint} Fields: {', '.join(fields)}")


@dataclasses.dataclass(frozen=True)
class Architecture(Config):
    """The architecture of a model. `kind` is its name in files, and `title` is its name in messages."""

    kind: ClassVar[str]
    title: ClassVar[str]

    def replace(self, **changes):
        """Returns a copy with some fields changed. Raises a TypeError for an unknown name."""
        self.check_names(changes, FACTORY_ARGUMENTS)
        return dataclasses.replace(self, **changes)

    def to_dict(self):
        """Returns the kind and the fields as a dictionary for JSON. `read_architecture` is the inverse."""
        return {"kind": self.kind, **_as_json(dataclasses.asdict(self))}


def _as_json(value):
    """Converts tuples to lists, as JSON does."""
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    return [_as_json(each) for each in value] if isinstance(value, (list, tuple)) else value


def class_with(names, classes):
    """Returns the dataclass with most of these fields, the first one of several. `None` if there are no classes."""
    return max(
        classes, key=lambda each: len({field.name for field in dataclasses.fields(each)} & {*names}), default=None
    )


def read_nested(config_classes, fields):
    """Returns the config of a part of a model, such as a `StemConfig`.

    Args:
        config_classes: The classes that the config may have. The fields decide between them.
        fields: {name: value}

    Raises:
        ValueError: If a field is unknown, or a field without a default is missing.
    """
    config_class = class_with(fields, config_classes)
    names = [field.name for field in dataclasses.fields(config_class)]
    unknown = [name for name in fields if name not in names]
    if unknown:
        raise ValueError(
            f"A {config_class.__name__} has no {', '.join(unknown)} in this version. Fields: {', '.join(names)}. "
            f"A file with other fields may have been written by a newer keras_vit."
        )
    required = [field.name for field in dataclasses.fields(config_class) if field.default is dataclasses.MISSING]
    if missing := [name for name in required if name not in fields]:
        raise ValueError(f"A {config_class.__name__} needs {' and '.join(missing)}. Received: {fields}")
    return config_class(**fields)
