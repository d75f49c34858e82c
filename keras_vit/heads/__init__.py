"""Heads that any Vision Transformer can carry, for an output of each pixel or of each object.

`keras_vit.Segmenter` and `keras_vit.DepthEstimator` put a head on an encoder.
"""

from keras_vit.heads.dpt import DPTHead as DPTHead
from keras_vit.heads.eomt import EoMTHead as EoMTHead
from keras_vit.heads.linear import LinearHead as LinearHead

HEADS = {"linear": LinearHead, "dpt": DPTHead, "eomt": EoMTHead}
"""{name of a head: class}"""
__all__ = ["DPTHead", "EoMTHead", "LinearHead"]
