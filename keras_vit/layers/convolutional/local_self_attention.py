"""Self-attention in windows of a map. B batch, H W C map, F channels put out, K heads, N places of a window."""

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.convolutional.local_windows import check_window_size, inside_map, local_windows
from keras_vit.layers.convolutional.projections import built_dense
from keras_vit.layers.convolutional.striding import strided_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class LocalSelfAttention(CompositeLayer):
    """Self-attention of each place to the window around it, which takes the place of a convolution.

    `y_o = sum_p softmax_p(q_o.k_p + q_o.r_{p-o}) v_p` over the places p of the window that lie in the map
    ("Stand-Alone Self-Attention in Vision Models", arXiv 1906.05909, equation 3): for each head the first half of `r`
    is learned for each distance in rows, the second for each in columns. Logits are not scaled. With strides, the mean
    of squares of `strides` x `strides` pixels follows, and of what there is of them at the border. The softmax is
    computed in float32 under any precision policy.

    Args:
        filters: Channels F that are put out, a multiple of `2 * num_heads`.
        window_size: Side of a window in pixels, odd.
        strides: Step in pixels, the same for both axes.
        num_heads: Number K of heads.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        (B, h, w, F), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If an argument is impossible.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.LocalSelfAttention(filters=12, window_size=3, strides=2, num_heads=3)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 3, 4, 12)
    """

    def __init__(self, filters, window_size=7, strides=1, num_heads=8, **kwargs):
        super().__init__(**kwargs)
        self.filters = check_positive_integer("filters", filters)
        self.window_size = check_window_size(window_size)
        self.strides = check_positive_integer("strides", strides)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        if filters % (2 * num_heads):
            raise ValueError(
                f"filters must be a multiple of 2 * num_heads: half of a head's channels are for distances in rows, "
                f"half for those in columns. Received: filters={filters}, num_heads={num_heads}"
            )

    def build(self, input_shape):
        channels = input_shape[-1]
        self.query, self.key, self.value = (
            built_dense(self, name, channels, self.filters) for name in ("query", "key", "value")
        )
        shape = (self.num_heads, self.window_size, self.filters // (2 * self.num_heads))
        initializer = keras.initializers.RandomNormal(stddev=shape[-1] ** -0.5)
        self.row_embedding = self.add_weight(name="row_embedding", shape=shape, initializer=initializer)
        self.column_embedding = self.add_weight(name="column_embedding", shape=shape, initializer=initializer)
        self.pooling = keras.layers.AveragePooling2D(
            self.strides, padding="same", data_format="channels_last", **self.part_arguments("pooling")
        )

    def call(self, maps):
        queries, keys, values = (self._split_heads(part(maps)) for part in (self.query, self.key, self.value))
        keys, values = local_windows(keys, self.window_size), local_windows(values, self.window_size)
        logits = ops.matmul(keys + self._relative_positions(ops.shape(maps)[0]), queries[..., None])
        logits = ops.where(inside_map(maps, self.window_size), ops.cast(logits, "float32"), -1e9)
        weights = ops.cast(ops.softmax(logits, axis=3), values.dtype)  # (B K, H, W, N, 1)
        outputs = ops.matmul(ops.swapaxes(weights, 3, 4), values)[:, :, :, 0]
        return self.pooling(self._join_heads(outputs))

    def _split_heads(self, values):
        """(B, H, W, F) as (B K, H, W, F / K): so no product has to move the channels of its windows."""
        batch, height, width, _ = ops.shape(values)
        values = ops.reshape(values, (batch, height, width, self.num_heads, self.filters // self.num_heads))
        return ops.reshape(ops.transpose(values, (0, 3, 1, 2, 4)), (-1, height, width, values.shape[-1]))

    def _join_heads(self, values):
        """(B K, H, W, F / K) as (B, H, W, F)"""
        _, height, width, channels = ops.shape(values)
        values = ops.reshape(values, (-1, self.num_heads, height, width, channels))
        return ops.reshape(ops.transpose(values, (0, 2, 3, 1, 4)), (-1, height, width, self.filters))

    def _relative_positions(self, batch):
        """(B K, 1, 1, N, F / K): those of the places of a window, row by row."""
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

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "window_size": self.window_size,
            "strides": self.strides,
            "num_heads": self.num_heads,
        }
