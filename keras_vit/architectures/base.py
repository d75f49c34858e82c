"""What the configs of all kinds of models share."""

import dataclasses
from typing import ClassVar

from keras_vit.checks import did_you_mean
from keras_vit.spellings import FACTORY_ARGUMENTS, argument_hint


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What a model is made of. `kind` is what files call it, `title` what messages do."""

    kind: ClassVar[str]
    title: ClassVar[str]

    def replace(self, **changes):
        """A copy with some fields changed. A name that is not a field raises a TypeError with the nearest ones."""
        fields = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in fields:
                arguments = [*fields, *FACTORY_ARGUMENTS]
                hint = argument_hint(name, arguments) or did_you_mean(name, arguments)
                raise TypeError(f"{name!r} is not a field of {type(self).__name__}.{hint} Fields: {', '.join(fields)}")
        return dataclasses.replace(self, **changes)

    def to_dict(self):
        """The kind and the fields, as JSON keeps them; `read_architecture` reads them."""
        return {"kind": self.kind, **_as_json(dataclasses.asdict(self))}


def _as_json(value):
    """The value with lists in place of tuples, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    return [_as_json(each) for each in value] if isinstance(value, (list, tuple)) else value
