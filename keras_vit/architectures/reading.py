"""Reads the config of a model from its file.

In a file, a config is a dictionary that contains the kind of the config and its fields.
"""

import dataclasses

from keras_vit.architectures.base import read_nested
from keras_vit.architectures.resnets import AxialResNetConfig, BiTResNetConfig, ResNetConfig, SelfAttentionNetworkConfig
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.architectures.visual_transformers import PanopticFPNConfig, VTFPNConfig, VTResNetConfig

_KINDS = {
    config.kind: config
    for config in (
        ViTConfig,
        BiTResNetConfig,
        AxialResNetConfig,
        ResNetConfig,
        VTResNetConfig,
        PanopticFPNConfig,
        VTFPNConfig,
        SelfAttentionNetworkConfig,
    )
}


def read_architecture(fields):
    """Returns the config that `to_dict` converted to `fields`. Raises a ValueError if `fields` is `None`."""
    if fields is None:
        raise ValueError(
            "The file does not contain the model's architecture. Build it with keras_vit.ViT or another function of "
            "keras_vit."
        )
    fields = dict(fields)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(
            f"{kind!r} is not a known kind of model. Known: {', '.join(_KINDS)}. The file may have been written by a "
            f"newer keras_vit."
        )
    unknown = fields.keys() - {field.name for field in dataclasses.fields(_KINDS[kind])}
    if unknown:
        raise ValueError(
            f"A {_KINDS[kind].title} has no {', '.join(sorted(unknown))} in this version. The file may have been "
            f"written by a newer keras_vit."
        )
    return _KINDS[kind](**read_fields(fields))


def read_fields(fields):
    """Returns the fields of a config. A dictionary of the field `stem` or `rotary` becomes the config of this field."""
    parts = ViTConfig.parts()
    return {
        name: read_nested(parts[name], value) if name in parts and isinstance(value, dict) else value
        for name, value in fields.items()
    }
