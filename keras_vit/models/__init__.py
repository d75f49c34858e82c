"""The factories that build models."""

from keras_vit.models import axial_resnet, bit_resnet, resnet, visual_transformer, vt_fpn
from keras_vit.models.axial import AxialViT, AxialViTB16, AxialViTB32
from keras_vit.models.axial_resnet import *  # noqa: F403
from keras_vit.models.bit_resnet import *  # noqa: F403
from keras_vit.models.hybrid import (
    R26ViTB32,
    R26ViTS32,
    R50ViTB16,
    R50ViTB32,
    R50ViTL16,
    R50ViTL32,
    RViTTi16,
)
from keras_vit.models.resnet import *  # noqa: F403
from keras_vit.models.visual_transformer import *  # noqa: F403
from keras_vit.models.vit import (
    ViT,
    ViTB8,
    ViTB14,
    ViTB16,
    ViTB32,
    ViTG14,
    ViTg14,
    ViTgOpt16,
    ViTH14,
    ViTH16,
    ViTL14,
    ViTL16,
    ViTL32,
    ViTM16,
    ViTS8,
    ViTS14,
    ViTS16,
    ViTS32,
    ViTSo400m14,
    ViTSo400m16,
    ViTTi16,
)
from keras_vit.models.vt_fpn import *  # noqa: F403

RESNETS = (*axial_resnet.__all__, *bit_resnet.__all__, *resnet.__all__, *visual_transformer.__all__)
"""Names of the functions whose models classify images, and are no Vision Transformers."""
SEGMENTERS = tuple(vt_fpn.__all__)
"""Names of the functions whose models assign a class to each pixel."""

__all__ = [
    "AxialViT",
    "AxialViTB16",
    "AxialViTB32",
    "R26ViTB32",
    "R26ViTS32",
    "R50ViTB16",
    "R50ViTB32",
    "R50ViTL16",
    "R50ViTL32",
    "RViTTi16",
    "ViT",
    "ViTB8",
    "ViTB14",
    "ViTB16",
    "ViTB32",
    "ViTG14",
    "ViTH14",
    "ViTH16",
    "ViTL14",
    "ViTL16",
    "ViTL32",
    "ViTM16",
    "ViTS8",
    "ViTS14",
    "ViTS16",
    "ViTS32",
    "ViTSo400m14",
    "ViTSo400m16",
    "ViTTi16",
    "ViTg14",
    "ViTgOpt16",
    *RESNETS,
    *SEGMENTERS,
]
