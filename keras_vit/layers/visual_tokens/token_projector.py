"""Adds tokens to a map.

Shapes: B batch, H W C map, N = HW pixels, K heads, L tokens of CT channels, F output channels.
"""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.pointwise_convolution import build_projection, num_groups_of
from keras_vit.layers.ops.maps import as_pixels
from keras_vit.layers.visual_tokens.heads import attention_weights, join_heads, split_heads


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenProjector(BaseLayer):
    """Adds a weighted sum of the tokens to each pixel of a map.

    `X_out = X + softmax_L((X W_Q)(T W_K)^T) T` (Visual Transformers, arXiv 2006.03677, equation 5). If the tokens do
    not have F channels, `T W_V` is used instead of T. If the map does not have F channels, `X W_X` is used instead of
    X. In this package's models, batch norms follow the projections, and `W_Q` projects groups of channels separately.
    These models have K heads and divide logits by `sqrt(F / K)`. The softmax is computed in float32 under any precision
    policy.

    Args:
        filters: Number F of output channels. `None`: C.
        num_heads: Number K of heads, a divisor of F.
        group_width: Number of output channels in each group of `W_Q`. `None`: one group.
        use_batch_norm: Whether a batch norm follows each projection.
        scale_logits: Whether logits are divided by `sqrt(F / K)`.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.
        tokens: (B, L, CT)
        training: Whether the batch norms use the batch's statistics and update their moving averages.

    Returns:
        (B, H, W, F)

    Raises:
        ValueError: If an argument is invalid or does not fit the shapes.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.TokenProjector()
    >>> tuple(layer(keras.ops.ones((2, 5, 7, 6)), keras.ops.ones((2, 4, 6))).shape)
    (2, 5, 7, 6)
    """

    def __init__(
        self,
        filters: int | None = None,
        num_heads: int = 1,
        group_width: int | None = None,
        use_batch_norm: bool = False,
        scale_logits: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = filters if filters is None else check_positive_integer("filters", filters)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        self.group_width = group_width if group_width is None else check_positive_integer("group_width", group_width)
        self.use_batch_norm = check_flag("use_batch_norm", use_batch_norm)
        self.scale_logits = check_flag("scale_logits", scale_logits)

    def build(self, maps_shape, tokens_shape):
        channels, token_dim = maps_shape[-1], tokens_shape[-1]
        filters = self.filters or channels
        if filters % self.num_heads:
            raise ValueError(f"num_heads must divide the {filters} channels. Received: num_heads={self.num_heads}")
        self.query = build_projection(self, "query", channels, filters, num_groups_of(filters, self.group_width))
        self.key = build_projection(self, "key", token_dim, filters)
        self.value = None if token_dim == filters else build_projection(self, "value", token_dim, filters)
        self.lateral = None if channels == filters else build_projection(self, "lateral", channels, filters)

    def attention_weights(self, maps, tokens, training=None):
        """Returns the weights (B, K, N, L) of the tokens for each pixel. Each row sums to 1."""
        queries, keys = self.query(as_pixels(maps), training=training), self.key(tokens, training=training)
        return attention_weights(queries, keys, self.num_heads, self.scale_logits, axis=-1)

    def call(self, maps, tokens, training=None):
        weights = self.attention_weights(maps, tokens, training)
        values = tokens if self.value is None else self.value(tokens, training=training)
        weighted_sums = join_heads(ops.matmul(weights, split_heads(values, self.num_heads)))
        pixels = as_pixels(maps)
        if self.lateral is not None:
            pixels = self.lateral(pixels, training=training)
        return ops.reshape(pixels + weighted_sums, (*ops.shape(maps)[:-1], pixels.shape[-1]))

    def compute_output_shape(self, maps_shape, tokens_shape):
        return (*maps_shape[:-1], self.filters or maps_shape[-1])

    def macs(self, maps_shape, tokens_shape):
        """Multiply-accumulates for one image of batches of shape (B, H, W, C) and (B, L, CT)."""
        total = 2 * math.prod(maps_shape[1:-1]) * tokens_shape[1] * (self.filters or maps_shape[-1])
        total += sum(part.macs(maps_shape) for part in (self.query, self.lateral) if part is not None)
        return total + sum(part.macs(tokens_shape) for part in (self.key, self.value) if part is not None)
