"""The kinds of models in transformers' layout (`kinds.toml`), and the names of their arrays (`names.txt`)."""

import dataclasses
import re
from collections.abc import Mapping

from keras_vit.weights.formats.names import Names, read_rules
from keras_vit.weights.formats.settings import read_toml

# Arrays that are not part of the image encoder: text encoders, decoders of masked pre-training, buffers.
_IGNORED = (r"text_model\..*", r"text_projection\..*", r"logit_.*", r".*position_ids", r"decoder\..*", r".*mask_token")
GELUS = {"gelu": "gelu_exact", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
"""{`hidden_act` in transformers' config: `ViTConfig.mlp`}"""
_ACTIVATIONS = {**GELUS, "gelu_new": "gelu_tanh"}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model in transformers' layout.

    Args:
        names: Names of its arrays.
        marks: Lists of names that occur together only in files of this kind.
        numerics: Key of `FAMILIES` that defines the GELU and the epsilon if the config does not contain them.
        family: Key of `FAMILIES` with the mean and std for files without a `preprocessor_config.json`.
            `None`: the files of this kind do not all have the same mean and std.
        fields: {field of `ViTConfig`: value in all models of this kind}
        activations: {`hidden_act` in the config: `ViTConfig.mlp`}. `None`: the MLP does not depend on the config.
        classifier: Description of the input of transformers' classifier, if this package does not support it. `None`:
            the classifier is supported.
    """

    names: Names
    marks: list[list[str]]
    numerics: str
    family: str | None = None
    fields: Mapping = dataclasses.field(default_factory=dict)
    activations: Mapping | None = dataclasses.field(default_factory=lambda: _ACTIVATIONS)
    classifier: str | None = None


def _kind(names, ignored=(), **fields):
    return Kind(Names(read_rules("huggingface/names.txt", *names), (*_IGNORED, *ignored)), **fields)


KINDS = {name: _kind(**fields) for name, fields in read_toml("huggingface/kinds.toml").items()}
"""{name of a kind: `Kind`}"""

_PREFIX = re.compile(r"^(vit|deit|ijepa|dinov2|dinov2_with_registers|vision_model|model)\.")


def without_prefix(name):
    """The name of an array without the prefix of the encoder in a larger model."""
    return _PREFIX.sub("", name)


def kind_of(names):
    """The key of `KINDS` for a file with these names, which have no prefix."""
    return next(name for name, kind in KINDS.items() if any(set(names).issuperset(marks) for marks in kind.marks))
