"""One residual unit of the stem of a hybrid model. Shapes: B batch, H W C map, h w output map."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.group_normalization import GroupNormalization
from keras_vit.layers.convolutional.parts import build_in_turn, macs_in_turn
from keras_vit.layers.convolutional.std_conv2d import StdConv2D

NUM_GROUPS = 32
"""Number of groups of every GroupNorm (arXiv 1803.08494, section 3.1)."""


@keras.saving.register_keras_serializable(package="keras_vit")
class BottleneckUnit(BaseLayer):
    """Three weight-standardised convolutions with GroupNorm and a residual connection.

    `y = relu(GN(conv1x1(x)))`, `y = relu(GN(conv3x3(y)))`, `y = GN(conv1x1(y))` and `relu(x + y)`. If the unit changes
    the shape, `x` is projected by `GN(conv1x1(x))`. These are the units of ViT's hybrid models (arXiv 2010.11929,
    section 3.1; `models_resnet.py` of google-research/vision_transformer). These units end with the activation, whereas
    BiT's units (arXiv 1912.11370) start with it. The 3 x 3 convolution applies `strides`. The gamma of the last
    GroupNorm starts at zero, so the output of the branch is zero before training. GroupNorm is computed in float32
    under any precision policy.

    Args:
        width: Number of channels inside the unit, a multiple of 32. The output has `4 width` channels.
        strides: Step in pixels, the same for both axes.
        group_norm_epsilon: Number that is added to the variance in every GroupNorm.
        weight_standardization_epsilon: Number that is added to the standard deviation of every kernel.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        (B, h, w, 4 width), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If `width` is not a multiple of 32, or if `strides` is not a positive integer.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.BottleneckUnit(width=32, strides=2)(keras.ops.ones((2, 5, 8, 64))).shape)
    (2, 3, 4, 128)
    """

    def __init__(
        self,
        width: int,
        strides: int = 1,
        group_norm_epsilon: float = 1e-6,
        weight_standardization_epsilon: float = 1e-5,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.width = check_positive_integer("width", width)
        if width % NUM_GROUPS:
            raise ValueError(f"width must be a multiple of {NUM_GROUPS}, the number of groups. Received: {width}")
        self.strides = check_positive_integer("strides", strides)
        self.group_norm_epsilon = group_norm_epsilon
        self.weight_standardization_epsilon = weight_standardization_epsilon

        self.conv_1, self.norm_1 = self._conv("conv_1", width, 1), self._norm("norm_1")
        self.conv_2, self.norm_2 = self._conv("conv_2", width, 3, strides), self._norm("norm_2")
        self.conv_3, self.norm_3 = self._conv("conv_3", 4 * width, 1), self._norm("norm_3", gamma_initializer="zeros")
        self.projection_conv: typing.Any = None
        self.projection_norm: typing.Any = None

    def _conv(self, name, filters, kernel_size, strides=1):
        arguments = self.part_arguments(name)
        return StdConv2D(filters, kernel_size, strides, self.weight_standardization_epsilon, **arguments)

    def _norm(self, name, **arguments):
        return GroupNormalization(NUM_GROUPS, self.group_norm_epsilon, **self.part_arguments(name), **arguments)

    def build(self, input_shape):
        branch = self.conv_1, self.norm_1, self.conv_2, self.norm_2, self.conv_3, self.norm_3
        build_in_turn(branch, input_shape)
        if input_shape[-1] != 4 * self.width or self.strides != 1:
            self.projection_conv = self._conv("projection_conv", 4 * self.width, 1, self.strides)
            self.projection_norm = self._norm("projection_norm")
            build_in_turn((self.projection_conv, self.projection_norm), input_shape)

    def call(self, maps):
        branch = ops.relu(self.norm_1(self.conv_1(maps)))
        branch = ops.relu(self.norm_2(self.conv_2(branch)))
        branch = self.norm_3(self.conv_3(branch))
        if self.projection_conv is not None:
            maps = self.projection_norm(self.projection_conv(maps))
        return ops.relu(maps + branch)

    def compute_output_shape(self, input_shape):
        return (*self.conv_2.compute_output_shape(input_shape)[:-1], 4 * self.width)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        total = 0 if self.projection_conv is None else self.projection_conv.macs(input_shape)
        return total + macs_in_turn((self.conv_1, self.conv_2, self.conv_3), input_shape)
