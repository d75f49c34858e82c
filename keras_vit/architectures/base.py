"""The base classes of the configs of all models, and `setting`, which defines a field of a config."""

import collections.abc
import dataclasses
import typing
from typing import ClassVar

from keras_vit.architectures.spellings import FACTORY_ARGUMENTS, unknown_argument
from keras_vit.checks import check_choice

ANY = object()
"""Used instead of a tuple of values if every value is accepted."""


def setting(
    check: typing.Any,
    default: typing.Any = dataclasses.MISSING,
    in_files: typing.Any = True,
    **expressed_by: typing.Any,
) -> typing.Any:
    """Defines a field of a config.

    Args:
        check: Function `(name, value)` that returns the value to store, or raises a ValueError. A tuple of values: only
            these values are accepted. A tuple of classes: `None` and instances of these classes are accepted.
        default: Value if no other value is given.
        in_files: Whether the outputs depend on the field. A field for training or for later adaptations is `False`.
        **expressed_by: {format of weight files: values that it can express}, a tuple of values and classes, or `ANY`. A
            format that is not listed can express the default only.
    """
    metadata: dict[str, typing.Any] = {"in_files": in_files, "expressed_by": expressed_by}
    if isinstance(check, tuple):
        kind = "classes" if all(isinstance(each, type) for each in check) else "choices"
        metadata[kind], check = check, {"classes": _check_part, "choices": check_choice}[kind]
    return dataclasses.field(default=default, metadata=metadata | {"check": check})


def optional(check: collections.abc.Callable) -> collections.abc.Callable:
    """The check that also accepts `None`."""
    return lambda name, value: None if value is None else check(name, value)


def check_later(name, value):
    """The check of a field that `check_combinations` checks, because its accepted values depend on other fields."""
    return value


def _check_part(name, value, classes):
    if not isinstance(value, (*classes, type(None))):
        names = " or ".join(f"a keras_vit.{each.__name__}" for each in classes)
        raise ValueError(f"{name} must be None or {names}. Received: {value!r}")
    return value


@dataclasses.dataclass(frozen=True)
class Config:
    """The base class of all configs. An unknown field raises a TypeError that suggests similar names.

    Fields are defined by `setting`, and their values are checked. `check_combinations` checks fields that depend on
    each other.
    """

    def __new__(cls, *_, **fields):
        cls.check_names(fields)
        return super().__new__(cls)

    def __post_init__(self):
        for name, value in self.checked({field.name: getattr(self, field.name) for field in dataclasses.fields(self)}):
            object.__setattr__(self, name, value)  # Integers of other types, such as NumPy's, become `int`.
        self.check_combinations()

    @classmethod
    def checked(cls, values):
        """Yields (field, value to store) for {field: value}. Raises a ValueError if a value is invalid."""
        for field in dataclasses.fields(cls):
            if field.name in values:
                accepted = [field.metadata[kind] for kind in ("classes", "choices") if kind in field.metadata]
                yield field.name, field.metadata["check"](field.name, values[field.name], *accepted)

    def check_combinations(self):
        """Raises a ValueError if fields do not fit each other."""

    @classmethod
    def choices(cls):
        """{field: its accepted values} for the fields that have such a list."""
        return {
            field.name: field.metadata["choices"] for field in dataclasses.fields(cls) if "choices" in field.metadata
        }

    @classmethod
    def parts(cls):
        """{field: classes of its value} for the fields that are themselves configs."""
        return {
            field.name: field.metadata["classes"] for field in dataclasses.fields(cls) if "classes" in field.metadata
        }

    @classmethod
    def check_names(cls, names, arguments=()):
        """Raises a TypeError if a name is not the name of a field. `arguments`: further names that it may suggest."""
        fields = [field.name for field in dataclasses.fields(cls)]
        for name in names:
            if name not in fields:
                raise unknown_argument(name, f"a field of {cls.__name__}", fields, arguments)


@dataclasses.dataclass(frozen=True)
class Architecture(Config):
    """The architecture of a model.

    `kind` is its name in files, and `title` is its name in messages. `output` is the kind of the output of its usual
    head, as in `keras_vit.Output`. `loads` are the kinds of the published weights that it can load. If it is another
    kind, only the backbone or encoder is loaded.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    output: ClassVar[str] = "classes"
    loads: ClassVar[tuple[str, ...]] = ()

    @property
    def num_extra_classes(self):
        """Number of outputs of the classifier that are not classes."""
        return 0

    @property
    def units(self):
        """Units of the output, or `None` if they are unknown."""
        return None

    def output_kind(self, name):
        """The kind of an output of the model, as in `keras_vit.Output`. `name` is the layer that returns it."""
        return self.output

    def __init_subclass__(cls):
        if "kind" in vars(cls):
            ARCHITECTURES[cls.kind] = cls

    def with_new_head(self):
        """The same architecture, for a model whose whole head is new."""
        return self

    def replace(self, **changes):
        """Returns a copy with some fields changed. Raises a TypeError for an unknown name."""
        self.check_names(changes, FACTORY_ARGUMENTS)
        return dataclasses.replace(self, **changes)

    def to_dict(self):
        """Returns the kind and the fields as a dictionary for JSON. `read_architecture` is the inverse."""
        return {"kind": self.kind, **_as_json(dataclasses.asdict(self))}

    @classmethod
    def read_fields(cls, fields):
        """Returns fields that were read from JSON. A dictionary becomes the config of the part that it describes."""
        parts = cls.parts()
        return {
            name: read_nested(parts[name], value) if name in parts and isinstance(value, dict) else value
            for name, value in fields.items()
        }


ARCHITECTURES: dict[str, type[Architecture]] = {}
"""{kind: config class}. A class with a `kind` enters itself."""


def read_architecture(fields):
    """Returns the config that `to_dict` converted to `fields`. Raises a ValueError if `fields` is `None`."""
    if fields is None:
        raise ValueError(
            "The file does not contain the model's architecture. Build it with keras_vit.ViT or another function of "
            "keras_vit."
        )
    fields = dict(fields)
    kind = fields.pop("kind", None)
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"{kind!r} is not a known kind of model. Known: {', '.join(ARCHITECTURES)}. The file may have been written "
            f"by a newer keras_vit."
        )
    architecture = ARCHITECTURES[kind]
    unknown = fields.keys() - {field.name for field in dataclasses.fields(architecture)}
    if unknown:
        raise ValueError(
            f"A {architecture.title} has no {', '.join(sorted(unknown))} in this version. The file may have been "
            f"written by a newer keras_vit."
        )
    return architecture(**architecture.read_fields(fields))


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
