"""The pooling at the root of a BiT-ResNet. B batch, H W C map, h w map put out."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.convolutional.striding import strided_shape

_VALUES = {
    # Zero itself would be lost on the way to ONNX: tf2onnx 1.17 makes a padding of zeros part of the pooling after it,
    # and ONNX pools as if nothing were there.
    "zeros": float(np.finfo("float32").tiny),
    "ignored": -np.inf,
}


@keras.saving.register_keras_serializable(package="keras_vit")
class PaddedMaxPooling2D(keras.layers.Layer):
    """The largest of 3 x 3 places, at every second place of each axis, with one place added on each side of the map.

    Keras's own padding puts nothing above and left of a map of even size, so that its windows lie elsewhere.

    Args:
        padding: `"zeros"`: zeros stand around the map, and where all of a border is less, zero is put out. So BiT was
            trained (arXiv 1912.11370, `bit_pytorch/models.py` of google-research/big_transfer). `"ignored"`: what is
            added is never the largest, as in `bit_paper.py` of google-research/big_vision.

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

    def __init__(self, padding, **kwargs):
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
