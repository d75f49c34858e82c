"""One residual unit of an AxialResNet. Shapes: B batch, H W C map, h w output map."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.axial_attention import AxialAttention
from keras_vit.layers.convolutional.padded_conv2d import PaddedConv2D
from keras_vit.layers.convolutional.parts import batch_norm, build_in_turn, macs_in_turn


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialBottleneckUnit(BaseLayer):
    """A ResNet's bottleneck unit with attention along both axes instead of the 3 x 3 convolution.

    `y = relu(BN(conv1x1(x)))`, `y = relu(mean(rows(columns(y))))`, `y = BN(conv1x1(y))` and `relu(x + y)`. `columns` is
    an `AxialAttention` along the height, and `rows` is an `AxialAttention` along the width. `mean` is average pooling
    over windows of `strides` x `strides` pixels. If the unit changes the shape, `x` is projected by `BN(conv1x1(x))`
    (Axial-DeepLab, arXiv 2003.07853, section 3.3; csrhddlam/axial-deeplab). The gamma of the last batch norm starts at
    zero, so the output of the branch is zero before training.

    Args:
        width: Number of channels inside the unit, a multiple of `2 * num_heads`. The output has `2 width` channels.
        strides: Step in pixels, the same for both axes.
        num_heads: Number of heads of each attention.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W must be known and multiples of `strides`.
        training: Whether the batch norms use the batch's statistics and update their moving averages.

    Returns:
        (B, h, w, 2 width), where h and w are H and W divided by `strides`.

    Raises:
        ValueError: If an argument is invalid, or if H or W is unknown, is not a multiple of `strides`, or is not the
            same as in the first call.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.AxialBottleneckUnit(width=12, strides=2, num_heads=3)
    >>> tuple(layer(keras.ops.ones((2, 6, 8, 4))).shape)
    (2, 3, 4, 24)
    """

    def __init__(self, width: int, strides: int = 1, num_heads: int = 8, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.width = check_positive_integer("width", width)
        self.strides = check_positive_integer("strides", strides)
        self.num_heads = check_positive_integer("num_heads", num_heads)

        self.conv_1, self.norm_1 = self._conv("conv_1", width), batch_norm(**self.part_arguments("norm_1"))
        self.height_attention = AxialAttention("height", width, num_heads, **self.part_arguments("height_attention"))
        self.width_attention = AxialAttention("width", width, num_heads, **self.part_arguments("width_attention"))
        self.conv_2 = self._conv("conv_2", 2 * width)
        self.norm_2 = batch_norm(gamma_initializer="zeros", **self.part_arguments("norm_2"))
        self.projection_conv: typing.Any = None
        self.projection_norm: typing.Any = None

    def _conv(self, name, filters, strides=1):
        return PaddedConv2D(filters, 1, strides, **self.part_arguments(name))

    def build(self, input_shape):
        _, height, width, channels = input_shape
        if None in (height, width) or height % self.strides or width % self.strides:
            raise ValueError(
                f"An axial unit needs maps of a known height and width that are multiples of its strides, "
                f"{self.strides}. Received: maps of shape {tuple(input_shape)}"
            )
        attention = self.height_attention, self.width_attention  # What follows does not depend on the map's size.
        build_in_turn((self.conv_1, self.norm_1, *attention, self.conv_2, self.norm_2), input_shape)
        if channels != 2 * self.width or self.strides != 1:
            self.projection_conv = self._conv("projection_conv", 2 * self.width, self.strides)
            self.projection_norm = batch_norm(**self.part_arguments("projection_norm"))
            build_in_turn((self.projection_conv, self.projection_norm), input_shape)

    def call(self, maps, training=None):
        branch = ops.relu(self.norm_1(self.conv_1(maps), training=training))
        branch = self.height_attention(branch, training=training)
        branch = self.width_attention(branch, training=training)
        branch = ops.relu(ops.average_pool(branch, self.strides, data_format="channels_last"))
        branch = self.norm_2(self.conv_2(branch), training=training)
        if self.projection_conv is not None:
            maps = self.projection_norm(self.projection_conv(maps), training=training)
        return ops.relu(maps + branch)

    def compute_output_shape(self, input_shape):
        sizes = (size and size // self.strides for size in input_shape[1:3])
        return (input_shape[0], *sizes, 2 * self.width)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        pooled = (*self.compute_output_shape(input_shape)[:-1], self.width)
        total = 0 if self.projection_conv is None else self.projection_conv.macs(input_shape)
        total += macs_in_turn((self.conv_1, self.height_attention, self.width_attention), input_shape)
        return total + self.conv_2.macs(pooled)
