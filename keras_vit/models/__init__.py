"""The factories that build models, and the kinds of models that `from_pretrained` builds."""

import collections.abc
import dataclasses
import functools

from keras_vit.architectures import BiTResNetConfig, ResNetConfig
from keras_vit.architectures.base import Architecture
from keras_vit.architectures.dense import DepthEstimatorConfig, DetectorConfig, NormalEstimatorConfig, SegmenterConfig
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.models import axial, axial_resnet, bit_resnet, dense, hybrid, resnet, visual_transformer, vit, vt_fpn
from keras_vit.models.building import build_on_trunk

RESNETS = (*axial_resnet.__all__, *bit_resnet.__all__, *resnet.__all__, *visual_transformer.__all__)
"""Names of the factories of all classifiers except Vision Transformers."""
SEGMENTERS = tuple(vt_fpn.__all__)
"""Names of the factories of segmentation models without a Vision Transformer."""
FACTORIES = (*axial.__all__, *dense.__all__, *hybrid.__all__, *vit.__all__, *RESNETS, *SEGMENTERS)
"""Names of all factories except those of `keras_vit.models.baselines`."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model.

    Args:
        config: Class of its configs. It defines the kind's name, its usual output and the weights that it loads.
        factory: Name of the function of keras_vit that builds it.
        build: Function `(config, shared, name, grid_size)` that builds a newly initialised model for
            `SharedArguments`. `grid_size` is that of the position table of the weights, or `None`.
    """

    config: type[Architecture]
    factory: str
    build: collections.abc.Callable


def _on_trunk(trunk, config, shared, name, grid_size):
    return build_on_trunk(trunk, config, shared, name)


KINDS = {
    kind.config.kind: kind
    for kind in (
        Kind(ViTConfig, "ViT", vit.build_model),
        Kind(BiTResNetConfig, "BiTResNet", functools.partial(_on_trunk, bit_resnet.trunk)),
        Kind(SegmenterConfig, "Segmenter", dense.build_model),
        Kind(DepthEstimatorConfig, "DepthEstimator", dense.build_model),
        Kind(DetectorConfig, "Detector", dense.build_model),
        Kind(NormalEstimatorConfig, "from_pretrained", dense.build_model),
        Kind(ResNetConfig, "ResNet", functools.partial(_on_trunk, resnet.trunk)),
    )
}
"""{kind of an architecture that loads its own published weights: `Kind`}"""
