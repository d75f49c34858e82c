"""Convolution with a standardised kernel.

Shapes: B batch, H W C map, h w output map, k side of the kernel, F filters.
"""

import typing

import keras
from keras import ops

from keras_vit.checks import check_choice, check_epsilon, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.maps import strided, strided_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(BaseLayer):
    """Convolution without a bias that standardises its kernel in each call.

    For each filter, `w' = (w - mean(w)) / (std(w) + epsilon)` (weight standardization, arXiv 1903.10520). The mean and
    the population standard deviation are computed over height, width and input channels. This is `StdConv` in
    `models_resnet.py` of google-research/vision_transformer. In contrast, BiT (arXiv 1912.11370) divides by
    `sqrt(var(w) + epsilon)` and uses equal padding on both sides. The kernel is standardised in float32 under any
    precision policy, and initialised with the LeCun normal distribution, as in Flax.

    Args:
        filters: Number F of filters.
        kernel_size: Side k of the square kernel in pixels.
        strides: Step in pixels, the same for both axes.
        epsilon: Number that is added to the standard deviation or to the variance. In [1e-15, 1].
        epsilon_placement: Statistic to which `epsilon` is added, `"std"` or `"variance"`.
        padding: Padding with zeros.

            * `"same"`: as in TensorFlow. If the number of zeros is odd, the bottom or right gets one more zero.
            * `"symmetric"`: equal padding on both sides, as in PyTorch. `kernel_size` must be odd. If `strides` is more
              than 1, the kernel may be shifted compared to `"same"`.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        (B, h, w, F), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If `filters`, `kernel_size` or `strides` is not a positive integer, if `epsilon` is out of range, or
            if another value is invalid.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.StdConv2D(filters=8, kernel_size=3, strides=2)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 3, 4, 8)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        strides: int = 1,
        epsilon: float = 1e-5,
        epsilon_placement: str = "std",
        padding: str = "same",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive_integer("filters", filters)
        self.kernel_size = check_positive_integer("kernel_size", kernel_size)
        self.strides = check_positive_integer("strides", strides)
        self.epsilon = check_epsilon("epsilon", epsilon)
        self.epsilon_placement = check_choice("epsilon_placement", epsilon_placement, ("std", "variance"))
        self.padding = check_choice("padding", padding, ("same", "symmetric"))
        if padding == "symmetric" and kernel_size % 2 == 0:
            raise ValueError(f"padding='symmetric' needs an odd kernel_size. Received: kernel_size={kernel_size}")

    def build(self, input_shape):
        shape = (self.kernel_size, self.kernel_size, input_shape[-1], self.filters)
        self.kernel = self.add_weight(shape, "lecun_normal", name="kernel", autocast=False)

    def standardized_kernel(self):
        """Returns the standardised kernel (k, k, C, F) in float32."""
        kernel = ops.cast(self.kernel, "float32")
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2))
        if self.epsilon_placement == "variance":
            return kernel / ops.sqrt(ops.var(kernel, axis=(0, 1, 2)) + self.epsilon)
        return kernel / (ops.std(kernel, axis=(0, 1, 2)) + self.epsilon)

    def call(self, maps):
        kernel = ops.cast(self.standardized_kernel(), self.compute_dtype)
        strides, padding = self.strides, "same"
        if self.kernel_size == 1:
            maps, strides = strided(maps, strides), 1
        elif self.padding == "symmetric":
            margin = (self.kernel_size // 2,) * 2
            maps, padding = ops.pad(maps, ((0, 0), margin, margin, (0, 0))), "valid"
        return ops.conv(maps, kernel, strides=strides, padding=padding, data_format="channels_last")

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, self.strides, self.filters)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, _ = self.compute_output_shape(input_shape)
        return height * width * self.kernel_size**2 * input_shape[-1] * self.filters
