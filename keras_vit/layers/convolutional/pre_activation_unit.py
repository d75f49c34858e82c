"""One residual unit of a BiT-ResNet. Shapes: B batch, H W C map, h w output map."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.bottleneck_unit import NUM_GROUPS
from keras_vit.layers.convolutional.group_normalization import GroupNormalization
from keras_vit.layers.convolutional.parts import build_in_turn, macs_in_turn
from keras_vit.layers.convolutional.std_conv2d import StdConv2D

GROUP_NORM_EPSILON = 1e-5
"""Number that is added to the variance, as in BiT's code."""


@keras.saving.register_keras_serializable(package="keras_vit")
class PreActivationUnit(BaseLayer):
    """Three weight-standardised convolutions, each after GroupNorm and ReLU, with a residual connection.

    `a = relu(GN(x))`, `y = conv1x1(a)`, `y = conv3x3(relu(GN(y)))`, `y = conv1x1(relu(GN(y)))` and `x + y`. If the unit
    changes the shape, `conv1x1(a)` replaces `x`. These are the units of BiT (arXiv 1912.11370; "Identity Mappings in
    Deep Residual Networks", arXiv 1603.05027; `bit_paper.py` of google-research/big_vision). The 3 x 3 convolution
    applies `strides`, with equal padding on both sides. Kernels are divided by `sqrt(variance + 1e-10)`. GroupNorm has
    32 groups and an epsilon of 1e-5. It is computed in float32 under any precision policy. All gammas start at one,
    unlike in `BottleneckUnit`.

    Args:
        width: Number of channels inside the unit, a multiple of 32. The output has `4 width` channels.
        strides: Step in pixels, the same for both axes.

    Call arguments:
        maps: (B, H, W, C), channels last. C is a multiple of 32. H and W may be unknown when the model is built.

    Returns:
        (B, h, w, 4 width), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If `width` is not a multiple of 32, or if `strides` is not a positive integer.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.PreActivationUnit(width=32, strides=2)(keras.ops.ones((2, 5, 8, 64))).shape)
    (2, 3, 4, 128)
    """

    def __init__(self, width: int, strides: int = 1, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.width = check_positive_integer("width", width)
        if width % NUM_GROUPS:
            raise ValueError(f"width must be a multiple of {NUM_GROUPS}, the number of groups. Received: {width}")
        self.strides = check_positive_integer("strides", strides)

        self.norm_1, self.conv_1 = self._norm("norm_1"), self._conv("conv_1", width, 1)
        self.norm_2, self.conv_2 = self._norm("norm_2"), self._conv("conv_2", width, 3, strides)
        self.norm_3, self.conv_3 = self._norm("norm_3"), self._conv("conv_3", 4 * width, 1)
        self.projection_conv: keras.Layer | None = None

    def _norm(self, name):
        return GroupNormalization(NUM_GROUPS, epsilon=GROUP_NORM_EPSILON, **self.part_arguments(name))

    def _conv(self, name, filters, kernel_size, strides=1):
        return bit_conv(filters, kernel_size, strides, **self.part_arguments(name))

    def build(self, input_shape):
        if input_shape[-1] != 4 * self.width or self.strides != 1:
            self.projection_conv = self._conv("projection_conv", 4 * self.width, 1, self.strides)
            self.projection_conv.build(input_shape)
        branch = self.norm_1, self.conv_1, self.norm_2, self.conv_2, self.norm_3, self.conv_3
        build_in_turn(branch, input_shape)

    def call(self, maps):
        activated = ops.relu(self.norm_1(maps))
        if self.projection_conv is not None:
            maps = self.projection_conv(activated)
        branch = self.conv_1(activated)
        branch = self.conv_2(ops.relu(self.norm_2(branch)))
        branch = self.conv_3(ops.relu(self.norm_3(branch)))
        return maps + branch

    def compute_output_shape(self, input_shape):
        return (*self.conv_2.compute_output_shape(input_shape)[:-1], 4 * self.width)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        total = 0 if self.projection_conv is None else self.projection_conv.macs(input_shape)
        return total + macs_in_turn((self.conv_1, self.conv_2, self.conv_3), input_shape)


def bit_conv(filters, kernel_size, strides, **arguments):
    """Creates BiT's `StdConv2D`, with equal padding on both sides and a kernel divided by `sqrt(variance + 1e-10)`."""
    return StdConv2D(filters, kernel_size, strides, 1e-10, "variance", "symmetric", **arguments)
