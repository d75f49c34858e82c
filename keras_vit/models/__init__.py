"""The factories that build models."""

from keras_vit.models import axial, axial_resnet, bit_resnet, hybrid, resnet, visual_transformer, vit, vt_fpn
from keras_vit.models.axial import *  # noqa: F403
from keras_vit.models.axial_resnet import *  # noqa: F403
from keras_vit.models.bit_resnet import *  # noqa: F403
from keras_vit.models.hybrid import *  # noqa: F403
from keras_vit.models.resnet import *  # noqa: F403
from keras_vit.models.visual_transformer import *  # noqa: F403
from keras_vit.models.vit import *  # noqa: F403
from keras_vit.models.vt_fpn import *  # noqa: F403

RESNETS = (*axial_resnet.__all__, *bit_resnet.__all__, *resnet.__all__, *visual_transformer.__all__)
"""Names of the factories of all classifiers except Vision Transformers."""
SEGMENTERS = tuple(vt_fpn.__all__)
"""Names of the factories of segmentation models."""

__all__ = [*axial.__all__, *hybrid.__all__, *vit.__all__, *RESNETS, *SEGMENTERS]
