"""Convolution combined with self-attention. Shapes: B batch, H W C map, h w output map, F output channels, K heads."""

import math
import typing

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.padded_conv2d import PaddedConv2D
from keras_vit.layers.convolutional.parts import build_dense
from keras_vit.layers.ops.maps import relative_rows, strided, strided_shape
from keras_vit.resampling import grid_matrices


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionAugmentedConv2D(BaseLayer):
    """A convolution that computes some of its output channels by self-attention over the whole map.

    `y = [conv(x), W attention(x)]` ("Attention Augmented Convolutional Networks", arXiv 1904.09925, equations 1 to 4).
    Each head has the logits `(q_o.k_p + q_o.r^h_{p-o} + q_o.r^w_{p-o}) / sqrt(key_dim / K)` for query pixel o and key
    pixel p. The vectors r^h are learned for each distance in rows, the vectors r^w for each distance in columns. All
    heads share these vectors. With strides, the attention uses only every `strides`-th row and column. The softmax is
    computed in float32 under any precision policy.

    Args:
        filters: Number F of output channels.
        key_dim: Number of query channels of all heads together, a multiple of `num_heads`. There are as many key
            channels.
        value_dim: Number of output channels from the attention, a multiple of `num_heads` and less than F.
        num_heads: Number K of heads.
        kernel_size: Side of the kernel in pixels, odd.
        strides: Step in pixels, the same for both axes.
        is_pooled: Whether the map is average-pooled over 3 x 3 pixels to half its size before the attention. The output
            of the attention is then enlarged bilinearly. The paper does this for large maps.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W must be known, because the number of distances depends on them.

    Returns:
        (B, h, w, F), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If an argument is invalid, or if H or W is unknown or not the same as in the first call.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.AttentionAugmentedConv2D(filters=12, key_dim=6, value_dim=3, num_heads=3)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 5, 8, 12)
    """

    def __init__(
        self,
        filters: int,
        key_dim: int,
        value_dim: int,
        num_heads: int = 8,
        kernel_size: int = 3,
        strides: int = 1,
        is_pooled: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive_integer("filters", filters)
        self.key_dim = check_positive_integer("key_dim", key_dim)
        self.value_dim = check_positive_integer("value_dim", value_dim)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        if key_dim % num_heads or value_dim % num_heads or value_dim >= filters:
            raise ValueError(
                f"key_dim and value_dim must be multiples of num_heads, and value_dim less than filters. Received: "
                f"key_dim={key_dim}, value_dim={value_dim}, num_heads={num_heads}, filters={filters}"
            )
        self.kernel_size = kernel_size
        self.strides = strides
        self.is_pooled = check_flag("is_pooled", is_pooled)
        self.conv = PaddedConv2D(filters - value_dim, kernel_size, strides, **self.part_arguments("conv"))

    def build(self, input_shape):
        if None in input_shape[1:3]:
            raise ValueError(
                f"AttentionAugmentedConv2D has tables for the height and width of its maps, so they must be known. "
                f"Received: maps of shape {tuple(input_shape)}. Build the model for images of one size."
            )
        self.map_size = tuple(input_shape[1:3])
        self.conv.build(input_shape)
        self.projection = build_dense(self, "projection", input_shape[-1], 2 * self.key_dim + self.value_dim)
        self.output_projection = build_dense(self, "output_projection", self.value_dim, self.value_dim)
        num_rows, num_columns = self._attention_size(input_shape)
        self.row_embedding = self._add_table("row_embedding", num_rows)
        self.column_embedding = self._add_table("column_embedding", num_columns)

    def _add_table(self, name, length):
        head_width = self.key_dim // self.num_heads
        initializer = keras.initializers.RandomNormal(stddev=head_width**-0.5)
        return self.add_weight(name=name, shape=(2 * length - 1, head_width), initializer=initializer)

    def _attention_size(self, input_shape):
        """Returns (rows, columns) of the map that the attention receives."""
        size = self.compute_output_shape(input_shape)[1:3]
        return tuple(-(-length // 2) for length in size) if self.is_pooled else size

    def call(self, maps):
        if tuple(maps.shape[1:3]) != self.map_size:
            raise ValueError(
                f"{self.name!r} was built for maps of (height, width) {self.map_size}. Received: "
                f"{tuple(maps.shape[1:3])}. The tables of relative positions fit one size only."
            )
        convolved, attended = self.conv(maps), strided(maps, self.strides)
        attended = self._attend(_shrink(attended) if self.is_pooled else attended)
        if self.is_pooled:
            attended = _enlarge(attended, convolved.shape[1:3])
        return ops.concatenate([convolved, attended], axis=-1)

    def _attend(self, maps):
        """Returns the output of the attention, (B, rows, columns, value_dim)."""
        query, key, value = ops.split(self.projection(maps), [self.key_dim, 2 * self.key_dim], axis=-1)
        query, key, value = self._split_heads(query), self._split_heads(key), self._split_heads(value)
        query = query * (self.key_dim // self.num_heads) ** -0.5
        row_logits = ops.einsum("bhwkd,hyd->bhwky", query, relative_rows(self.row_embedding, query.dtype))
        column_logits = ops.einsum("bhwkd,wxd->bhwkx", query, relative_rows(self.column_embedding, query.dtype))
        logits = ops.einsum("bhwkd,byxkd->bhwkyx", query, key)
        logits = logits + row_logits[..., None] + column_logits[..., None, :]
        shape = ops.shape(logits)
        logits = ops.reshape(ops.cast(logits, "float32"), (*shape[:4], -1))
        weights = ops.reshape(ops.cast(ops.softmax(logits), value.dtype), shape)
        outputs = ops.einsum("bhwkyx,byxkd->bhwkd", weights, value)
        return self.output_projection(ops.reshape(outputs, (*shape[:3], self.value_dim)))

    def _split_heads(self, values):
        return ops.reshape(values, (*ops.shape(values)[:-1], self.num_heads, values.shape[-1] // self.num_heads))

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, self.strides, self.filters)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        size = self._attention_size(input_shape)
        position_macs = input_shape[-1] * (2 * self.key_dim + self.value_dim) + self.value_dim**2
        position_macs += math.prod(size) * (self.key_dim + self.value_dim) + sum(size) * self.key_dim
        return self.conv.macs(input_shape) + math.prod(size) * position_macs


def _shrink(maps):
    """Pools maps (B, H, W, C) to half their size. Each output pixel is a mean of up to 3 x 3 pixels of the map.

    Keras's average pooling cannot be used, because on PyTorch it includes zeros outside of the map.
    """
    rows, columns = (ops.cast(_means(length), maps.dtype) for length in maps.shape[1:3])
    return ops.einsum("yh,bhwc,xw->byxc", rows, maps, columns)


def _means(length):
    """Returns a matrix (half, length) that averages windows of three positions, with stride 2 and padding "same"."""
    half = -(-length // 2)
    first = -(max(2 * half + 1 - length, 0) // 2)
    distances = np.arange(length) - (2 * np.arange(half)[:, None] + first)
    is_in_window = (distances >= 0) & (distances < 3)
    return is_in_window / is_in_window.sum(1, keepdims=True)


def _enlarge(maps, size):
    """Resizes maps (B, H, W, C) to (B, h, w, C) by bilinear interpolation between pixel centres."""
    matrices = grid_matrices(maps.shape[1:3], size, "bilinear")
    return ops.einsum("hi,wj,bijc->bhwc", *(ops.cast(matrix, maps.dtype) for matrix in matrices), maps)
