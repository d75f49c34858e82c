"""Segmentation models that are quick to build."""

import keras_vit

BACKBONE = {"stage_depths": (1, 1, 1), "width": 3}
SIZES = {
    "VTFPN": {"neck_dim": 12, "head_dim": 6, "num_tokens": 2, "token_dim": 24, "num_heads": 3, "group_width": 4},
    "PanopticFPN": {"neck_dim": 12, "head_dim": 6},
}


def tiny_segmenter(factory, input_shape, classes=5, **arguments):
    """A model of one of `SIZES` with three stages of one unit, so that a map is merged with a merged map."""
    arguments = {**BACKBONE, **SIZES[factory], **arguments}
    return getattr(keras_vit, factory)("R18", input_shape=input_shape, classes=classes, **arguments)
