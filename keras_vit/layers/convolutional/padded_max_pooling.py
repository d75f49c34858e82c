"""Max pooling in the stem of a ResNet. Shapes: B batch, H W C map, h w output map."""

import typing

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_choice
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.maps import strided_shape

_VALUES = {
    # The value for "zeros" is tiny but positive. If it were exactly zero, tf2onnx 1.17 would merge the padding and the
    # pooling into one operation. Max pooling in ONNX would then ignore the padded pixels.
    "zeros": float(np.finfo("float32").tiny),
    "ignored": -np.inf,
}


@keras.saving.register_keras_serializable(package="keras_vit")
class PaddedMaxPooling2D(BaseLayer):
    """Max pooling over 3 x 3 pixels with stride 2 and a padding of one pixel on each side.

    Keras's padding adds no pixels at the top and left of maps of even size, so it would shift the windows.

    Args:
        padding: Padding of the map.

            * `"zeros"`: zeros. If all values of a window at the border are negative, the output is zero. BiT was
              trained this way (arXiv 1912.11370, `bit_pytorch/models.py` of google-research/big_transfer).
            * `"ignored"`: the output is the maximum of the pixels inside the map, as in `bit_paper.py` of
              google-research/big_vision.

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
        self.padding = check_choice("padding", padding, _VALUES)

    def call(self, maps):
        padded = ops.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=_VALUES[self.padding])
        return ops.max_pool(padded, 3, 2, "valid", data_format="channels_last")

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, 2, input_shape[3])
