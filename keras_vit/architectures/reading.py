"""From what a model's file keeps to a config.

A file keeps a config as a dictionary: that of a `ViTConfig` has its fields alone, any other also `kind`, which says
whose fields they are.
"""

import dataclasses

from keras_vit.architectures.resnets import (
    AxialResNetConfig,
    BiTResNetConfig,
    ResNetConfig,
    SelfAttentionNetworkConfig,
)
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.architectures.visual_transformers import PanopticFPNConfig, VTFPNConfig, VTResNetConfig

_KINDS = {
    config.kind: config
    for config in (
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
    kind = fields.pop("kind", None)
    if kind is None:
        return ViTConfig.from_dict(fields)
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
    return _KINDS[kind](**fields)
