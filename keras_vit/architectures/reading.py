"""Reads the config of a model from its file.

A file has a config as a dictionary of its kind and its fields. Files of version 0.1 have no kind for a `ViTConfig`.
"""

import dataclasses

from keras_vit.architectures.resnets import (
    AxialResNetConfig,
    BiTResNetConfig,
    ResNetConfig,
    SelfAttentionNetworkConfig,
)
from keras_vit.architectures.vision_transformer import StemConfig, ViTConfig
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
    """The config that `to_dict` wrote as `fields`. `None`, for a model that was not built here, raises a ValueError."""
    if fields is None:
        raise ValueError(
            "The model has no architecture in its file. Build it with keras_vit.ViT or another function of keras_vit."
        )
    fields = dict(fields)
    kind = fields.pop("kind", ViTConfig.kind)
    if kind not in _KINDS:
        raise ValueError(
            f"{kind!r} is not a known kind of model. Known: {', '.join(_KINDS)}. The file may have been written by a "
            f"newer keras_vit."
        )
    unknown = fields.keys() - {field.name for field in dataclasses.fields(_KINDS[kind])}
    if unknown:
        raise ValueError(
            f"A {_KINDS[kind].title} has no {', '.join(sorted(unknown))} here. The file may have been written by a "
            f"newer keras_vit."
        )
    if fields.get("stem") is not None:
        fields["stem"] = StemConfig(**fields["stem"])
    return _KINDS[kind](**fields)
