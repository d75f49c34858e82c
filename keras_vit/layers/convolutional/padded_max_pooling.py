"""Max pooling at the root of a ResNet. B batch, H W C map, h w output map."""

import typing

import keras
import numpy as np
from keras import ops

from keras_vit.layers.convolutional.striding import strided_shape

_VALUES = {
    # Exact zeros would be lost in ONNX: tf2onnx 1.17 merges a padding of zeros into the pooling after it, and ONNX's
    # pooling ignores the padding.
    "zeros": float(np.finfo("float32").tiny),
    "ignored": -np.inf,
}


@keras.saving.register_keras_serializable(package="keras_vit")
class PaddedMaxPooling2D(keras.layers.Layer):
    """Max pooling over 3 x 3 pixels with stride 2 and a padding of one pixel on each side.

    Keras's own padding adds nothing at the top and left of a map of even size, so its windows are shifted.

    Args:
        padding: `"zeros"`: the map is padded with zeros, so zero is the output at a border with negative values only.
            BiT was trained this way (arXiv 1912.11370, `bit_pytorch/models.py` of google-research/big_transfer).
            `"ignored"`: the padding is never the largest, as in `bit_paper.py` of google-research/big_vision.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        (B, h, w, C), where h and w are H and W divided by two and rounded up.

    Raises:
        ValueError: If `padding` is unknown.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.PaddedMaxPooling2D("zeros")(keras.ops.ones((2, 5, 8, 3))).shape)
    (2, 3, 4, 3)
    """

    def __init__(self, padding: str, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.padding = padding
        if padding not in _VALUES:
            raise ValueError(f"padding must be 'zeros' or 'ignored'. Received: {padding!r}")

    def call(self, maps):
        padded = ops.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=_VALUES[self.padding])
        return ops.max_pool(padded, 3, 2, "valid", data_format="channels_last")

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, 2, input_shape[3])

    def get_config(self):
        return {**super().get_config(), "padding": self.padding}
