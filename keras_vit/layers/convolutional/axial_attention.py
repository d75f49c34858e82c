"""Self-attention along one axis.

Shapes: B batch, H W C map, F output channels, K heads, N pixels in a row or column.
"""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_choice, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.parts import batch_norm
from keras_vit.layers.ops.maps import relative_rows

_AXES = {"height": 1, "width": 2}


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialAttention(BaseLayer):
    """Position-sensitive self-attention within each row or within each column.

    Axial-DeepLab (arXiv 2003.07853), equation 4: `y_o = sum_p softmax_p(q_o.k_p + q_o.r^q_{p-o} + k_p.r^k_{p-o})
    (v_p + r^v_{p-o})`. Pixel o attends to the pixels p of its row or column. The vectors r are learned for each
    distance p - o and shared by all heads. As in the authors' code (csrhddlam/axial-deeplab), queries and keys have
    half the width of values, and logits are not scaled. A batch norm follows the projection, each term of the logits
    and each term of the output. The softmax and the statistics of the batch norms are computed in float32 under any
    precision policy.

    Args:
        axis: `"height"`: the pixels of a column attend to each other. `"width"`: the pixels of a row attend to each
            other.
        filters: Number F of output channels, a multiple of `2 * num_heads`.
        num_heads: Number K of heads.

    Call arguments:
        maps: (B, H, W, C), channels last. The size along `axis` must be known, because the number of distances depends
            on it.
        training: Whether the batch norms use the batch's statistics and update their moving averages.

    Returns:
        (B, H, W, F)

    Raises:
        ValueError: If an argument is invalid, or if the size along `axis` is unknown or not the same as in the first
            call.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.AxialAttention("width", filters=12, num_heads=3)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 5, 8, 12)
    """

    def __init__(self, axis: str, filters: int, num_heads: int = 8, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.axis = check_choice("axis", axis, _AXES)
        self.filters = check_positive_integer("filters", filters)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        if filters % (2 * num_heads):
            raise ValueError(
                f"filters must be a multiple of 2 * num_heads, because queries and keys have half the width of "
                f"values. Received: filters={filters}, num_heads={num_heads}"
            )

    def build(self, input_shape):
        self.length = input_shape[_AXES[self.axis]]
        if self.length is None:
            raise ValueError(
                f"AxialAttention has tables for the {self.axis} of its maps, so the {self.axis} must be known. "
                f"Received: maps of shape {tuple(input_shape)}. Build the model for images of one size."
            )
        head_width = self.filters // self.num_heads
        initializer = keras.initializers.RandomNormal(stddev=1 / math.sqrt(input_shape[-1]))
        arguments = {"use_bias": False, "kernel_initializer": initializer}
        self.projection = self.build_part(keras.layers.Dense, "projection", input_shape, 2 * self.filters, **arguments)
        self.projection_norm = self.build_part(batch_norm, "projection_norm", (None, None, None, 2 * self.filters))
        shape = (2 * self.length - 1, 2 * head_width)  # Each row contains r^q, r^k and r^v.
        initializer = keras.initializers.RandomNormal(stddev=1 / math.sqrt(head_width))
        self.relative_embedding = self.add_weight(shape, initializer, name="relative_embedding")
        self.logit_norm = self.build_part(batch_norm, "logit_norm", (None, None, None, None, 3 * self.num_heads))
        self.output_norm = self.build_part(batch_norm, "output_norm", (None, None, None, 2 * self.filters))

    def call(self, maps, training=None):
        length = maps.shape[_AXES[self.axis]]
        if length != self.length:
            raise ValueError(
                f"{self.name!r} was built for maps of {self.axis} {self.length}. Received: {self.axis} {length}. The "
                f"tables of relative positions fit one size only."
            )
        lines = ops.swapaxes(maps, 1, 2) if self.axis == "height" else maps  # (B, S, N, C), S rows or columns.
        projected = self.projection_norm(self.projection(lines), training=training)
        shape = ops.shape(projected)
        projected = ops.reshape(projected, (*shape[:3], self.num_heads, 2 * self.filters // self.num_heads))
        query, key, value = self._split(projected)
        query_table, key_table, value_table = self._split(relative_rows(self.relative_embedding, self.compute_dtype))
        terms = [
            ops.einsum("bsokd,bspkd->bsopk", query, key),
            ops.einsum("bsokd,opd->bsopk", query, query_table),
            ops.einsum("bspkd,opd->bsopk", key, key_table),
        ]
        logits = self._sum_of_normalized(terms, self.logit_norm, training)
        weights = ops.cast(ops.softmax(ops.cast(logits, "float32"), axis=3), value.dtype)  # (B, S, N, N, K)
        contents = ops.einsum("bsopk,bspkd->bsokd", weights, value)
        positions = ops.einsum("bsopk,opd->bsokd", weights, value_table)
        terms = [ops.reshape(term, (*shape[:3], self.filters)) for term in (contents, positions)]
        outputs = self._sum_of_normalized(terms, self.output_norm, training)
        return ops.swapaxes(outputs, 1, 2) if self.axis == "height" else outputs

    def _split(self, values):
        """Splits the last axis into queries, keys and values."""
        width = values.shape[-1] // 4
        return ops.split(values, [width, 2 * width], axis=-1)

    def _sum_of_normalized(self, terms, norm, training):
        normalized = norm(ops.concatenate(terms, axis=-1), training=training)
        first, *remaining = ops.split(normalized, len(terms), axis=-1)
        return sum(remaining, first)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.filters)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, channels = input_shape
        length = input_shape[_AXES[self.axis]]
        # Each of the three terms of the logits has F / 2 channels. Each of the two terms of the output has F channels.
        attention_macs = length * (3 * self.filters // 2 + 2 * self.filters)
        return height * width * (channels * 2 * self.filters + attention_macs)
