"""Convolution beside self-attention. B batch, H W C map, h w map put out, F channels put out, K heads."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.convolutional.padded_conv2d import PaddedConv2D
from keras_vit.layers.convolutional.projections import built_dense
from keras_vit.layers.convolutional.striding import strided, strided_shape
from keras_vit.resampling import resize_matrix


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionAugmentedConv2D(CompositeLayer):
    """A convolution, some of whose channels come from self-attention over the whole map.

    `y = [conv(x), W attention(x)]` ("Attention Augmented Convolutional Networks", arXiv 1904.09925, equations 1 to 4):
    the attention of each head has the logits `(q_o.k_p + q_o.r^h_{p-o} + q_o.r^w_{p-o}) / sqrt(key_dim / K)`, with a
    learned vector for each distance in rows and each in columns, shared by the heads. With strides, every so many
    places attend to each other. The softmax is computed in float32 under any precision policy.

    Args:
        filters: Channels F that are put out.
        key_dim: Channels of all queries, and of all keys, a multiple of `num_heads`.
        value_dim: Channels that come from the attention, a multiple of `num_heads` and less than F.
        num_heads: Number K of heads.
        kernel_size: Side of the kernel in pixels, odd.
        strides: Step in pixels, the same for both axes.
        is_pooled: Whether the attention sees the map at half its size, by means of 3 x 3 places, and what it puts out
            is interpolated bilinearly, as in the paper where maps are large.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W must be known: the tables are theirs.

    Returns:
        (B, h, w, F), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If an argument is impossible, or H or W are unknown or not those which the layer was built for.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.AttentionAugmentedConv2D(filters=12, key_dim=6, value_dim=3, num_heads=3)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 5, 8, 12)
    """

    def __init__(self, filters, key_dim, value_dim, num_heads=8, kernel_size=3, strides=1, is_pooled=False, **kwargs):
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
        channels = input_shape[-1]
        self.conv.build(input_shape)
        self.projection = built_dense(self, "projection", channels, 2 * self.key_dim + self.value_dim)
        self.output_projection = built_dense(self, "output_projection", self.value_dim, self.value_dim)
        self.row_embedding, self.column_embedding = (
            self._table(name, length)
            for name, length in zip(
                ("row_embedding", "column_embedding"), self._attention_size(input_shape), strict=True
            )
        )

    def _table(self, name, length):
        head_width = self.key_dim // self.num_heads
        return self.add_weight(
            name=name,
            shape=(2 * length - 1, head_width),
            initializer=keras.initializers.RandomNormal(stddev=head_width**-0.5),
        )

    def _attention_size(self, input_shape):
        """(rows, columns) of the map that the attention sees."""
        size = self.compute_output_shape(input_shape)[1:3]
        return tuple(-(-length // 2) for length in size) if self.is_pooled else size

    def call(self, maps):
        if tuple(maps.shape[1:3]) != self.map_size:
            raise ValueError(
                f"{self.name!r} was built for maps of (height, width) {self.map_size}. Received: "
                f"{tuple(maps.shape[1:3])}. The tables of relative positions are those of one size."
            )
        attended = strided(maps, self.strides)
        attended = self._attend(_shrink(attended) if self.is_pooled else attended)
        convolved = self.conv(maps)
        if self.is_pooled:
            attended = _enlarge(attended, convolved.shape[1:3])
        return ops.concatenate([convolved, attended], axis=-1)

    def _attend(self, maps):
        """(B, rows, columns, value_dim)"""
        query, key, value = ops.split(self.projection(maps), [self.key_dim, 2 * self.key_dim], axis=-1)
        query, key, value = self._split_heads(query), self._split_heads(key), self._split_heads(value)
        query = query * (self.key_dim // self.num_heads) ** -0.5
        of_rows = ops.einsum("bhwkd,hyd->bhwky", query, _relative(self.row_embedding, query.dtype))
        of_columns = ops.einsum("bhwkd,wxd->bhwkx", query, _relative(self.column_embedding, query.dtype))
        logits = ops.einsum("bhwkd,byxkd->bhwkyx", query, key)
        logits = logits + of_rows[..., None] + of_columns[..., None, :]
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
        of_place = input_shape[-1] * (2 * self.key_dim + self.value_dim) + self.value_dim**2
        of_place += math.prod(size) * (self.key_dim + self.value_dim) + sum(size) * self.key_dim
        return self.conv.macs(input_shape) + math.prod(size) * of_place

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "num_heads": self.num_heads,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "is_pooled": self.is_pooled,
        }


def _relative(table, dtype):
    """(n, n, D) of a table (2 n - 1, D): for each place o and each place p the row of the distance p - o."""
    length = (table.shape[0] + 1) // 2
    places = np.arange(length)
    return ops.cast(ops.take(table, places[None, :] - places[:, None] + length - 1, axis=0), dtype)


def _shrink(maps):
    """Maps (B, H, W, C) at half their size: means of 3 x 3 places, at the border of those that there are.

    Keras's average pooling counts what is not there as zeros on PyTorch.
    """
    rows, columns = (ops.cast(_means(length), maps.dtype) for length in maps.shape[1:3])
    return ops.einsum("yh,bhwc,xw->byxc", rows, maps, columns)


def _means(length):
    """(half, length): weights of the means of three places around every second one, as TensorFlow pads."""
    half = -(-length // 2)
    first = -(max(2 * half + 1 - length, 0) // 2)
    distances = np.arange(length) - (2 * np.arange(half)[:, None] + first)
    inside = (distances >= 0) & (distances < 3)
    return inside / inside.sum(1, keepdims=True)


def _enlarge(maps, size):
    """Maps (B, H, W, C) as (B, h, w, C), interpolated bilinearly between the centres of pixels."""
    rows, columns = (
        ops.cast(resize_matrix(length, new_length, "bilinear"), maps.dtype)
        for length, new_length in zip(maps.shape[1:3], size, strict=True)
    )
    return ops.einsum("hi,wj,bijc->bhwc", rows, columns, maps)
