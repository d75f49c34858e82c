"""A linear projection of the channels at each position. Shapes: B batch, N positions, C and F channels, G groups."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.parts import batch_norm


@keras.saving.register_keras_serializable(package="keras_vit")
class PointwiseConvolution(BaseLayer):
    """A convolution of size 1 without bias, in groups of channels, with an optional batch norm.

    Visual Transformers (arXiv 2006.03677) project tokens and pixels with this layer. The channels are divided into G
    groups, which are projected separately ("ImageNet Classification with Deep Convolutional Neural Networks", section
    3.5). This reduces the number of multiplications by the factor G. The batch norm has PyTorch's epsilon and momentum.
    Its statistics are computed over all positions of all images, in float32 under any precision policy.

    Args:
        filters: Number F of output channels, a multiple of `num_groups`.
        num_groups: Number G of groups.
        use_batch_norm: Whether a batch norm follows.

    Call arguments:
        values: (B, N, C), tokens or the pixels of a map. C is a multiple of `num_groups`.
        training: Whether the batch norm uses the batch's statistics and updates its moving averages.

    Returns:
        (B, N, F)

    Raises:
        ValueError: If `filters` or C is not a multiple of `num_groups`.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.PointwiseConvolution(filters=8, num_groups=2)
    >>> tuple(layer(keras.ops.ones((2, 5, 6))).shape), tuple(layer.kernel.shape)
    ((2, 5, 8), (3, 8))
    """

    def __init__(self, filters: int, num_groups: int = 1, use_batch_norm: bool = False, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive_integer("filters", filters)
        self.num_groups = check_positive_integer("num_groups", num_groups)
        self.use_batch_norm = check_flag("use_batch_norm", use_batch_norm)
        if filters % num_groups:
            raise ValueError(
                f"filters must be a multiple of num_groups. Received: filters={filters}, num_groups={num_groups}"
            )

    def build(self, input_shape):
        channels = input_shape[-1]
        if channels % self.num_groups:
            raise ValueError(
                f"{self.name!r} splits channels into {self.num_groups} groups, so the number of channels must be a "
                f"multiple of {self.num_groups}. Received: {channels} channels"
            )
        shape = (channels // self.num_groups, self.filters)
        self.kernel = self.add_weight(shape, "glorot_uniform", name="kernel")
        self.norm = self.build_part(batch_norm, "norm", (None, None, self.filters)) if self.use_batch_norm else None

    def call(self, values, training=None):
        if self.num_groups == 1:
            outputs = ops.matmul(values, self.kernel)
        else:
            shape = ops.shape(values)[:-1]
            groups = ops.reshape(values, (*shape, self.num_groups, -1))
            kernel = ops.reshape(self.kernel, (-1, self.num_groups, self.filters // self.num_groups))
            outputs = ops.reshape(ops.einsum("bngc,cgf->bngf", groups, kernel), (*shape, self.filters))
        return outputs if self.norm is None else self.norm(outputs, training=training)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.filters)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, N, C)."""
        return math.prod(input_shape[1:]) * self.filters // self.num_groups


def num_groups_of(channels, group_width):
    """Returns the number of groups of `group_width` channels. A width of `None` or >= `channels` gives one group."""
    if group_width is None or group_width >= channels:
        return 1
    if channels % group_width:
        raise ValueError(f"group_width must divide the {channels} channels. Received: group_width={group_width}")
    return channels // group_width


def build_projection(layer, name, channels, filters, num_groups=1):
    """Builds a `PointwiseConvolution` as part of `layer`, with a batch norm if `layer.use_batch_norm` is `True`."""
    arguments = filters, num_groups, layer.use_batch_norm
    return layer.build_part(PointwiseConvolution, name, (None, None, channels), *arguments)
