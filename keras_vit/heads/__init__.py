"""Heads that any Vision Transformer can carry, for an output of each pixel or of each object.

`keras_vit.Segmenter`, `keras_vit.DepthEstimator` and `keras_vit.Detector` put a head on an encoder.
"""

from keras_vit.heads.box import BoxHead as BoxHead
from keras_vit.heads.detection_tokens import DetectionTokens as DetectionTokens
from keras_vit.heads.dpt import DPTHead as DPTHead
from keras_vit.heads.eomt import EoMTHead as EoMTHead
from keras_vit.heads.linear import LinearHead as LinearHead

HEADS = {
    "linear": LinearHead,
    "dpt": DPTHead,
    "eomt": EoMTHead,
    "box": BoxHead,
    "detection_tokens": DetectionTokens,
}
"""{name of a head: class}"""
__all__ = ["BoxHead", "DPTHead", "DetectionTokens", "EoMTHead", "LinearHead"]
