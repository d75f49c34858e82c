"""From what a model's file keeps to a config.

A file keeps a config as a dictionary of its kind and its fields. Files of version 0.1 have no kind for a `ViTConfig`.
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
    """The config whose `to_dict` gave `fields`; a model that was put together by hand has none, and is refused."""
    if fields is None:
        raise ValueError(
            "The model does not say what it is made of. Build it with keras_vit.ViT or another function of keras_vit."
        )
    fields = dict(fields)
    kind = fields.pop("kind", ViTConfig.kind)
    if kind not in _KINDS:
        raise ValueError(
            f"A model of the kind {kind!r} is not known here; those known are {', '.join(_KINDS)}. The file may be of "
            f"a newer keras_vit."
        )
    unknown = fields.keys() - {field.name for field in dataclasses.fields(_KINDS[kind])}
    if unknown:
        raise ValueError(
            f"A {_KINDS[kind].title} has no {', '.join(sorted(unknown))} here. The file may be of a newer keras_vit."
        )
    if fields.get("stem") is not None:
        fields["stem"] = StemConfig(**fields["stem"])
    return _KINDS[kind](**fields)
