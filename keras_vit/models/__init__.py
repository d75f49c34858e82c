"""The factories that build models."""

from keras_vit.models import axial, axial_resnet, bit_resnet, hybrid, resnet, visual_transformer, vit, vt_fpn

RESNETS = (*axial_resnet.__all__, *bit_resnet.__all__, *resnet.__all__, *visual_transformer.__all__)
"""Names of the factories of all classifiers except Vision Transformers."""
SEGMENTERS = tuple(vt_fpn.__all__)
"""Names of the factories of segmentation models."""
FACTORIES = (*axial.__all__, *hybrid.__all__, *vit.__all__, *RESNETS, *SEGMENTERS)
"""Names of all factories except those of `keras_vit.models.baselines`."""
