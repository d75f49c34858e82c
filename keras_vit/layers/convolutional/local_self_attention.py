"""Self-attention in windows of a map. Shapes: B batch, H W C map, F output channels, K heads, N pixels in a window."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.parts import build_dense
from keras_vit.layers.ops.maps import check_window_size, is_inside_map, local_windows, strided_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class LocalSelfAttention(BaseLayer):
    """Self-attention of each pixel to the window around it, as a replacement for a convolution.

    `y_o = sum_p softmax_p(q_o.k_p + q_o.r_{p-o}) v_p` ("Stand-Alone Self-Attention in Vision Models", arXiv 1906.05909,
    equation 3). The sum includes only pixels p of the window that are inside the map. The vectors `r` are learned. In
    each head, the first half of their channels depends on the distance in rows, the second half on the distance in
    columns. Logits are not scaled. With strides, the output is averaged over squares of `strides` x `strides` pixels.
    At a border, only the pixels of a square that are inside the map are averaged. The softmax is computed in float32
    under any precision policy.

    Args:
        filters: Number F of output channels, a multiple of `2 * num_heads`.
        window_size: Side of a window in pixels, odd.
        strides: Step in pixels, the same for both axes.
        num_heads: Number K of heads.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        (B, h, w, F), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.LocalSelfAttention(filters=12, window_size=3, strides=2, num_heads=3)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 3, 4, 12)
    """

    def __init__(
        self, filters: int, window_size: int = 7, strides: int = 1, num_heads: int = 8, **kwargs: typing.Any
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive_integer("filters", filters)
        self.window_size = check_window_size(window_size)
        self.strides = check_positive_integer("strides", strides)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        if filters % (2 * num_heads):
            raise ValueError(
                f"filters must be a multiple of 2 * num_heads, because half of a head's channels are for distances in "
                f"rows and half for distances in columns. Received: filters={filters}, num_heads={num_heads}"
            )

    def build(self, input_shape):
        channels = input_shape[-1]
        self.query, self.key, self.value = (
            build_dense(self, name, channels, self.filters) for name in ("query", "key", "value")
        )
        shape = (self.num_heads, self.window_size, self.filters // (2 * self.num_heads))
        initializer = keras.initializers.RandomNormal(stddev=shape[-1] ** -0.5)
        self.row_embedding = self.add_weight(name="row_embedding", shape=shape, initializer=initializer)
        self.column_embedding = self.add_weight(name="column_embedding", shape=shape, initializer=initializer)

    def call(self, maps):
        queries, keys, values = (self._split_heads(part(maps)) for part in (self.query, self.key, self.value))
        keys, values = local_windows(keys, self.window_size), local_windows(values, self.window_size)
        logits = ops.matmul(keys + self._relative_positions(ops.shape(maps)[0]), queries[..., None])
        logits = ops.where(is_inside_map(maps, self.window_size), ops.cast(logits, "float32"), -1e9)
        weights = ops.cast(ops.softmax(logits, axis=3), values.dtype)  # (B K, H, W, N, 1)
        outputs = ops.matmul(ops.swapaxes(weights, 3, 4), values)[:, :, :, 0]
        maps = self._join_heads(outputs)
        return ops.average_pool(maps, self.strides, padding="same", data_format="channels_last")

    def _split_heads(self, values):
        """Reshapes (B, H, W, F) to (B K, H, W, F / K). Windows then need no transposition before matrix products."""
        batch, height, width, _ = ops.shape(values)
        values = ops.reshape(values, (batch, height, width, self.num_heads, self.filters // self.num_heads))
        return ops.reshape(ops.transpose(values, (0, 3, 1, 2, 4)), (-1, height, width, values.shape[-1]))

    def _join_heads(self, values):
        """Reshapes (B K, H, W, F / K) to (B, H, W, F)."""
        _, height, width, channels = ops.shape(values)
        values = ops.reshape(values, (-1, self.num_heads, height, width, channels))
        return ops.reshape(ops.transpose(values, (0, 2, 3, 1, 4)), (-1, height, width, self.filters))

    def _relative_positions(self, batch):
        """Returns the embeddings r of the pixels in a window, row by row, (B K, 1, 1, N, F / K)."""
        rows = ops.repeat(self.row_embedding, self.window_size, axis=1)
        columns = ops.tile(self.column_embedding, (1, self.window_size, 1))
        positions = ops.cast(ops.concatenate([rows, columns], axis=-1), self.compute_dtype)
        return ops.tile(positions, (batch, 1, 1))[:, None, None]

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, self.strides, self.filters)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, channels = input_shape
        return height * width * self.filters * (3 * channels + 2 * self.window_size**2)
