"""Boxes in relation to patches. Shapes: B batch, h w patches, N = h w."""

import typing

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer

_EPSILON = 1e-4


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchBoxes(BaseLayer):
    """Makes boxes of the logits of each patch: `sigmoid(logits + bias)` (OWL-ViT, arXiv 2205.06230, section 3.1).

    With logits of zero, each patch predicts a box of the size of a patch, whose centre is the lower right corner of the
    patch. The bias contains the logits of this box, `ln(p + 1e-4) - ln(1 - p + 1e-4)`.

    Call arguments:
        logits: (B, N, 4)
        patches: (B, h, w, D), the map of patches. Only its size is used.

    Returns:
        (B, N, 4): centre x, centre y, width and height of the box of each patch, as shares of the image.

    Example:

    >>> import keras, keras_vit
    >>> boxes = keras_vit.layers.PatchBoxes()(keras.ops.zeros((1, 8, 4)), keras.ops.zeros((1, 2, 4, 3)))
    >>> [round(float(number), 3) for number in boxes[0, 0]]
    [0.25, 0.5, 0.25, 0.5]
    """

    def __init__(self, **kwargs: typing.Any) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)

    def call(self, logits, patches):
        height, width = ops.shape(patches)[1:3]
        rows, columns = (ops.cast(side, "float32") for side in (height, width))
        x = ops.tile((ops.arange(width, dtype="float32") + 1) / columns, [height])
        y = ops.repeat((ops.arange(height, dtype="float32") + 1) / rows, width)
        one = ops.ones_like(x)
        shares = ops.stack([x, y, one / columns, one / rows], axis=-1)  # (N, 4)
        bias = ops.log(shares + _EPSILON) - ops.log(1 - shares + _EPSILON)
        return ops.sigmoid(ops.cast(logits, "float32") + bias)

    def compute_output_spec(self, logits, patches):
        return keras.KerasTensor(logits.shape, dtype="float32")
