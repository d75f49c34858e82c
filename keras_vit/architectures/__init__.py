"""The configs that describe the architectures of models, and the tables of published sizes."""

from keras_vit.architectures.base import read_architecture
from keras_vit.architectures.published import (
    PANOPTIC_FPNS,
    RESNETS,
    SELF_ATTENTION_NETWORKS,
    VT_FPNS,
    VT_RESNETS,
    changed_config,
)
from keras_vit.architectures.resnets import AxialResNetConfig, BiTResNetConfig, ResNetConfig, SelfAttentionNetworkConfig
from keras_vit.architectures.visual_transformers import PanopticFPNConfig, VTFPNConfig, VTResNetConfig

__all__ = [
    "PANOPTIC_FPNS",
    "RESNETS",
    "SELF_ATTENTION_NETWORKS",
    "VT_FPNS",
    "VT_RESNETS",
    "AxialResNetConfig",
    "BiTResNetConfig",
    "PanopticFPNConfig",
    "ResNetConfig",
    "SelfAttentionNetworkConfig",
    "VTFPNConfig",
    "VTResNetConfig",
    "changed_config",
    "read_architecture",
]
