"""Attention of few queries, without the keys and values of all tokens.

B batch, T tokens, t queries, D hidden, K heads, Dh = D / K.
"""

import math

from keras import ops

from keras_vit.layers.ops.attention_kernels import attention_weights, log_sizes
from keras_vit.layers.ops.layouts import apply_einsum_dense


def are_few(attention, queries):
    """Whether `attend_few` computes at most half of the products that a `MultiHeadSelfAttention` does."""
    if queries is None or queries.shape[-2] is None or len(queries.shape) != 3 or attention.qk_norm:
        return False
    is_quantized = any(layer.quantization_mode is not None for layer in (attention.key, attention.value))
    return not is_quantized and 2 * queries.shape[-2] * attention.num_heads <= queries.shape[-1]


def attend_few(attention, tokens, queries, sizes=None, training=None):
    """The outputs of a `MultiHeadSelfAttention`, (B, t, D); arguments as of its call.

    The queries attend to the tokens x themselves, `softmax((q W_k^T) x^T / sqrt(Dh)) x W_v`: for each head's W,
    `q (x W)^T = (q W^T) x^T` and `A (x W) = (A x) W`.
    """
    key, value, scale = attention.key, attention.value, math.sqrt(attention.num_heads / queries.shape[-1])
    tokens, key_kernel, key_bias, value_kernel, value_bias = (
        ops.cast(x, attention.compute_dtype) for x in (tokens, key.kernel, key.bias, value.kernel, value.bias)
    )
    query = apply_einsum_dense(attention.query, queries, 1, scale)  # (B, t, K, Dh)
    by_head, width = query.shape[1:3], tokens.shape[-1]
    rows = (-1, math.prod(by_head))  # B, t K
    attending = ops.reshape(_multiply_heads(query, ops.transpose(key_kernel, (1, 2, 0))), (*rows, width))
    # The softmax cancels what is the same for all keys. Without this term `key/bias` would have no gradient.
    bias = ops.cast(ops.reshape(ops.sum(query * key_bias, axis=-1), (*rows, 1)), "float32")
    bias = bias if sizes is None else bias + log_sizes(sizes)[:, None, :]
    weights = ops.cast(attention_weights(attending, tokens, bias), tokens.dtype)  # (B, t K, T)
    weights = attention.dropout(weights, training=training)
    received = ops.reshape(ops.matmul(weights, tokens), (-1, *by_head, width))
    share = ops.reshape(ops.sum(weights, axis=-1), (-1, *by_head, 1))  # Factor of the values' bias: 1 without dropout.
    heads = _multiply_heads(received, ops.transpose(value_kernel, (1, 0, 2))) + share * value_bias
    return apply_einsum_dense(attention.output_projection, heads, 2)


def _multiply_heads(values, kernels):
    """(B, t, K, x), each head's multiplied with its own of (K, x, y): (B, t, K, y)."""
    _, num_queries, num_heads, width = values.shape
    rows = ops.reshape(ops.transpose(values, (2, 0, 1, 3)), (num_heads, -1, width))  # (K, B t, x)
    products = ops.reshape(ops.matmul(rows, kernels), (num_heads, -1, num_queries, kernels.shape[-1]))
    return ops.transpose(products, (1, 2, 0, 3))
