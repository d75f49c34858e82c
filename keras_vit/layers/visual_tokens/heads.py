"""Multi-head attention weights. Shapes: B batch, N pixels, L tokens, C channels, K heads."""

import math

from keras import ops


def split_heads(values, num_heads):
    """Reshapes (B, N, C) to (B, K, N, C / K)."""
    shape = ops.shape(values)
    return ops.swapaxes(ops.reshape(values, (*shape[:2], num_heads, values.shape[-1] // num_heads)), 1, 2)


def join_heads(values):
    """Reshapes (B, K, N, C / K) to (B, N, C)."""
    shape = ops.shape(values)
    return ops.reshape(ops.swapaxes(values, 1, 2), (shape[0], shape[2], values.shape[1] * values.shape[3]))


def attention_weights(queries, keys, num_heads, scale, axis):
    """Computes the softmax of the products of queries (B, t, D) and keys (B, s, D) in float32. Returns (B, K, t, s).

    Args:
        queries, keys: Tensors. D is a multiple of the number of heads.
        num_heads: Number K of heads.
        scale: Whether the products are divided by `sqrt(D / K)`.
        axis: Axis over which the weights sum to 1: -1 for the keys, -2 for the queries.
    """
    if scale:
        queries = queries / math.sqrt(queries.shape[-1] // num_heads)
    logits = ops.matmul(split_heads(queries, num_heads), ops.swapaxes(split_heads(keys, num_heads), 2, 3))
    return ops.cast(ops.softmax(ops.cast(logits, "float32"), axis=axis), logits.dtype)
