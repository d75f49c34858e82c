"""Multi-head self-attention. B batch, T tokens (t asks, s answers), D hidden, K heads, Dh = D / K."""

import math

import keras
from keras import ops

from keras_vit.config import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(keras.layers.Layer):
    """Multi-head self-attention, with biases.

    For each head, `A = softmax(q k^T / sqrt(Dh))` and `SA = A v`; the heads are concatenated and projected
    (ViT, arXiv 2010.11929, eqs. 5 to 8). Kernels are kept by head, (D, K, Dh) and (K, Dh, D), as Google publishes
    them. Xavier uniform over the whole D x D matrix, zero biases. The softmax is computed in float32 under any
    precision policy.

    Args:
        num_heads: Number K of heads. Divides D.
        dropout_rate: Dropout of the attention weights. In [0, 1).

    Call arguments:
        tokens: (B, T, D)
        training: Whether dropout acts.

    Returns:
        (B, T, D)

    Raises:
        ValueError: If D is not a multiple of `num_heads`.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.MultiHeadSelfAttention(num_heads=3)(keras.ops.ones((2, 7, 12))).shape)
    (2, 7, 12)
    """

    def __init__(self, num_heads, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        self.dropout_rate = dropout_rate

    def build(self, input_shape):
        hidden_dim = input_shape[-1]
        if hidden_dim % self.num_heads:
            raise ValueError(
                f"The tokens' width must be a multiple of num_heads. Received: tokens of shape {tuple(input_shape)}, "
                f"num_heads={self.num_heads}"
            )
        heads_shape = (*input_shape[:-1], self.num_heads, hidden_dim // self.num_heads)
        self.query = self._project_in("query", input_shape, heads_shape)
        self.key = self._project_in("key", input_shape, heads_shape)
        self.value = self._project_in("value", input_shape, heads_shape)
        self.output_projection = keras.layers.EinsumDense(
            "btkh,khd->btd",
            output_shape=(None, hidden_dim),
            bias_axes="d",
            kernel_initializer=_xavier_uniform(hidden_dim),
            dtype=self.dtype_policy,
            name="output",
        )
        self.output_projection.build(heads_shape)
        self.dropout = keras.layers.Dropout(self.dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.dropout.build(heads_shape)

    def _project_in(self, name, input_shape, heads_shape):
        layer = keras.layers.EinsumDense(
            "btd,dkh->btkh",
            output_shape=(None, *heads_shape[-2:]),
            bias_axes="kh",
            kernel_initializer=_xavier_uniform(input_shape[-1]),
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(input_shape)
        return layer

    def call(self, tokens, training=None):
        query = self.query(tokens)  # (B, T, K, Dh)
        key, value = self.key(tokens), self.value(tokens)
        query = query * (1.0 / math.sqrt(query.shape[-1]))
        logits = ops.einsum("btkh,bskh->bkts", query, key)
        weights = ops.softmax(ops.cast(logits, "float32"), axis=-1)
        weights = self.dropout(ops.cast(weights, value.dtype), training=training)
        return self.output_projection(ops.einsum("bkts,bskh->btkh", weights, value))

    def compute_output_shape(self, input_shape):
        return input_shape

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D)."""
        _, num_tokens, hidden_dim = input_shape
        return num_tokens * 4 * hidden_dim**2 + 2 * num_tokens**2 * hidden_dim

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads, "dropout_rate": self.dropout_rate}


def _xavier_uniform(hidden_dim):
    # Not "glorot_uniform": for a kernel kept by head, Keras takes the heads for a receptive field.
    limit = math.sqrt(6 / (hidden_dim + hidden_dim))
    return keras.initializers.RandomUniform(-limit, limit)
