"""Attention in several heads. B batch, N pixels, L tokens, C channels, K heads."""

import math

from keras import ops


def as_pixels(maps):
    """(B, H, W, C) as (B, N, C)"""
    shape = ops.shape(maps)
    return ops.reshape(maps, (shape[0], -1, maps.shape[-1]))


def split_heads(values, num_heads):
    """(B, N, C) as (B, K, N, C / K)"""
    shape = ops.shape(values)
    return ops.swapaxes(ops.reshape(values, (*shape[:2], num_heads, values.shape[-1] // num_heads)), 1, 2)


def join_heads(values):
    """(B, K, N, C / K) as (B, N, C)"""
    shape = ops.shape(values)
    return ops.reshape(ops.swapaxes(values, 1, 2), (shape[0], shape[2], values.shape[1] * values.shape[3]))


def attention_weights(queries, keys, num_heads, scale, axis):
    """The softmax of the products of queries (B, t, D) and keys (B, s, D), in float32: (B, K, t, s).

    Args:
        queries, keys: Tensors, D a multiple of the number of heads.
        num_heads: Number K of heads.
        scale: Whether products are divided by `sqrt(D / K)`.
        axis: Over which the softmax goes: -1: what answers, -2: what asks.
    """
    if scale:
        queries = queries / math.sqrt(queries.shape[-1] // num_heads)
    logits = ops.matmul(split_heads(queries, num_heads), ops.swapaxes(split_heads(keys, num_heads), 2, 3))
    return ops.cast(ops.softmax(ops.cast(logits, "float32"), axis=axis), logits.dtype)
