"""The transformer of visual tokens. Shapes: B batch, K heads, L tokens of D channels."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.pointwise_convolution import build_projection
from keras_vit.layers.visual_tokens.heads import attention_weights, join_heads, split_heads


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenTransformer(BaseLayer):
    """The transformer of Visual Transformers: self-attention, then two dense layers for each token.

    `T' = T + softmax_L((T K)(T Q)^T) T` and `T_out = T' + relu(T' F_1) F_2` (arXiv 2006.03677, equations 3 and 4), with
    `K` and `Q` of shape (D, D / 2). The softmax is computed in float32 under any precision policy. The transformers in
    a `VTResNet` differ from these equations:

    * The weights are multiplied by values `T V` instead of T.
    * Keys, queries and values are projected in groups of channels.
    * Batch norms follow all projections, including `F_1` and `F_2`.
    * There are several heads, and logits are divided by `sqrt(D / (2 num_heads))`.

    Args:
        num_heads: Number K of heads, a divisor of D / 2.
        num_groups: Number of groups of the projections to keys, queries and values. `None`: one group, and the values
            are T instead of `T V`.
        use_batch_norm: Whether a batch norm follows each projection.
        scale_logits: Whether logits are divided by `sqrt(D / (2 num_heads))`.

    Call arguments:
        tokens: (B, L, D)
        training: Whether the batch norms use the batch's statistics and update their moving averages.

    Returns:
        (B, L, D)

    Raises:
        ValueError: If an argument is invalid or does not fit D.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.TokenTransformer()(keras.ops.ones((2, 4, 6))).shape)
    (2, 4, 6)
    """

    def __init__(
        self,
        num_heads: int = 1,
        num_groups: int | None = None,
        use_batch_norm: bool = False,
        scale_logits: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        self.num_groups = num_groups if num_groups is None else check_positive_integer("num_groups", num_groups)
        self.use_batch_norm = check_flag("use_batch_norm", use_batch_norm)
        self.scale_logits = check_flag("scale_logits", scale_logits)

    def build(self, input_shape):
        token_dim = input_shape[-1]
        if token_dim % (2 * self.num_heads):
            raise ValueError(
                f"{self.name!r} has {self.num_heads} heads, and its keys have half of the tokens' channels. The "
                f"number of channels must be a multiple of {2 * self.num_heads}. Received: {token_dim} channels"
            )
        groups = self.num_groups or 1
        if token_dim % (2 * groups):
            raise ValueError(
                f"{self.name!r} projects tokens in {groups} groups to half their channels. The number of "
                f"channels must be a multiple of {2 * groups}. Received: {token_dim} channels"
            )
        self.key = build_projection(self, "key", token_dim, token_dim // 2, groups)
        self.query = build_projection(self, "query", token_dim, token_dim // 2, groups)
        self.value = None if self.num_groups is None else build_projection(self, "value", token_dim, token_dim, groups)
        self.dense_1 = build_projection(self, "dense_1", token_dim, token_dim)
        self.dense_2 = build_projection(self, "dense_2", token_dim, token_dim)

    def attention_weights(self, tokens, training=None):
        """Returns the attention weights (B, K, L, L). Row i contains token i's weights for all tokens and sums to 1."""
        keys, queries = self.key(tokens, training=training), self.query(tokens, training=training)
        return attention_weights(keys, queries, self.num_heads, self.scale_logits, axis=-1)

    def call(self, tokens, training=None):
        weights = self.attention_weights(tokens, training)
        values = tokens if self.value is None else self.value(tokens, training=training)
        tokens = tokens + join_heads(ops.matmul(weights, split_heads(values, self.num_heads)))
        hidden = ops.relu(self.dense_1(tokens, training=training))
        return tokens + self.dense_2(hidden, training=training)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, L, D)."""
        _, num_tokens, token_dim = input_shape
        parts = (self.key, self.query, self.value, self.dense_1, self.dense_2)
        products = num_tokens**2 * (token_dim // 2 + token_dim)
        return products + sum(part.macs(input_shape) for part in parts if part is not None)
