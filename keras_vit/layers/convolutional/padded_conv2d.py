"""Convolution with the padding of PyTorch.

Shapes: B batch, H W C map, h w output map, k side of the kernel, F filters.
"""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.maps import strided, strided_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class PaddedConv2D(BaseLayer):
    """Convolution without a bias, with equal padding on both sides.

    With `strides` of more than 1, Keras's padding can be larger at the bottom and right than at the top and left. This
    would shift the kernel compared to models that were trained with PyTorch. The kernel is initialised with the He
    normal distribution (fan-out, arXiv 1502.01852), as in torchvision's ResNets.

    Args:
        filters: Number F of filters.
        kernel_size: Side k of the square kernel in pixels, an odd number. Each side is padded with k // 2 zeros.
        strides: Step in pixels, the same for both axes.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        (B, h, w, F), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If `filters`, `kernel_size` or `strides` is not a positive integer, or if `kernel_size` is even.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.PaddedConv2D(filters=8, kernel_size=3, strides=2)(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 3, 4, 8)
    """

    def __init__(self, filters: int, kernel_size: int, strides: int = 1, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive_integer("filters", filters)
        self.kernel_size = check_positive_integer("kernel_size", kernel_size)
        self.strides = check_positive_integer("strides", strides)
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd. Received: {kernel_size}")
        self.kernel_initializer = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")

    def build(self, input_shape):
        shape = (self.kernel_size, self.kernel_size, input_shape[-1], self.filters)
        self.kernel = self.add_weight(shape, self.kernel_initializer, name="kernel")

    def call(self, maps):
        margin = (self.kernel_size // 2,) * 2
        if self.kernel_size == 1:
            return ops.matmul(strided(maps, self.strides), self.kernel[0, 0])
        if self.strides == 1:  # "same" then pads both sides equally.
            return ops.conv(maps, self.kernel, padding="same", data_format="channels_last")
        maps = ops.pad(maps, ((0, 0), margin, margin, (0, 0)))
        return ops.conv(maps, self.kernel, self.strides, "valid", data_format="channels_last")

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, self.strides, self.filters)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, filters = self.compute_output_shape(input_shape)
        return height * width * self.kernel_size**2 * input_shape[-1] * filters
