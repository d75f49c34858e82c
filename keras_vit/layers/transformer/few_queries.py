"""Shortcuts for few queries: the first tokens of the last block, and the probe of a pooling.

Shapes: B batch, T tokens, t queries, D hidden, K heads, Dh = D / K.
"""

import math

import keras
from keras import ops

from keras_vit.layers.ops.attention_kernels import attention_weights, log_sizes
from keras_vit.layers.ops.layouts import apply_einsum_dense, residual_and_branch
from keras_vit.layers.transformer.attention import MultiHeadSelfAttention
from keras_vit.layers.transformer.encoder_block import EncoderBlock
from keras_vit.layers.transformer.merging_encoder_block import MergingEncoderBlock
from keras_vit.layers.transformer.rematerialization import rematerializable


def can_compute_first(block, num_outputs, tokens_shape):
    """Whether `first_tokens` can compute the first `num_outputs` output tokens of a block for inputs of this shape."""
    if type(block) not in (EncoderBlock, MergingEncoderBlock) or type(block.attention) is not MultiHeadSelfAttention:
        return False
    are_unmerged = type(block) is EncoderBlock or num_outputs <= block.merging.num_prefix_tokens
    return are_unmerged and not block.attention.relative_positions and len(tokens_shape) == 3


@rematerializable
def first_tokens(block, tokens, argument=None, *, num_outputs, training=None):
    """Computes the first tokens of a block's output without the attention and the MLP of the other tokens.

    Args:
        block: An `EncoderBlock` or a `MergingEncoderBlock`.
        tokens: (B, T, D), as in the block's `call`.
        argument: Second argument of the block's `call`: `sizes` of a `MergingEncoderBlock`, otherwise `positions`.
        num_outputs: Number of returned tokens. See `can_compute_first`.
        training: As in the block's `call`.

    Returns:
        (B, num_outputs, D). If the block is a `MergingEncoderBlock`, a pair of these tokens and their sizes is
        returned. All sizes are 1, because the first tokens are not merged.
    """
    sizes, positions = (argument, None) if isinstance(block, MergingEncoderBlock) else (None, argument)
    with keras.name_scope(block.name):
        _, tokens = residual_and_branch(ops.cast(tokens, block.compute_dtype))
        normalized = block.norm_before(block.attention_norm, tokens)
        queries = _first(normalized, num_outputs)
        branch = attend(block.attention, normalized, queries, sizes, positions, training)
        residual, _ = residual_and_branch(_first(tokens, num_outputs))
        first = block.add_mlp(block.add_attention(residual, branch, training), training)
    return (first, ops.ones(ops.shape(first)[:2], "int32")) if isinstance(block, MergingEncoderBlock) else first


def _first(tokens, number):
    """Returns the first tokens, (B, number, D). Their static shape is known in TensorFlow even if T is unknown."""
    return ops.reshape(tokens[:, :number], (-1, number, tokens.shape[-1]))


def attend(attention, tokens, queries, sizes=None, positions=None, training=None):
    """Computes the output (B, t, D) of a `MultiHeadSelfAttention`, without keys and values if this takes less time."""
    if positions is None and can_skip_keys(attention, queries):
        return attend_without_keys(attention, tokens, queries, sizes, training)
    return attention(tokens, queries=queries, sizes=sizes, positions=positions, training=training)


def can_skip_keys(attention, queries):
    """Whether `attend_without_keys` accepts the queries and needs at most half of the attention's multiplications."""
    # With rotary positions, for example, each key has its own angle, so `q (x W)^T = (q W^T) x^T` does not hold.
    if queries.shape[-2] is None or len(queries.shape) != 3 or not attention.has_plain_scores:
        return False
    is_quantized = any(layer.quantization_mode is not None for layer in (attention.key, attention.value))
    return not is_quantized and 2 * queries.shape[-2] * attention.num_heads <= queries.shape[-1]


def attend_without_keys(attention, tokens, queries, sizes=None, training=None):
    """Computes the output (B, t, D) of a `MultiHeadSelfAttention` without the keys and values of the tokens.

    The queries attend directly to the tokens x: `softmax((q W_k^T) x^T / sqrt(Dh)) x W_v`. Computing the keys and
    values of all tokens would give the same result, because `q (x W)^T = (q W^T) x^T` and `A (x W) = (A x) W`, where W
    is a kernel of a head and A are the attention weights of this head.
    """
    key, value, scale = attention.key, attention.value, math.sqrt(attention.num_heads / queries.shape[-1])
    arrays = (tokens, key.kernel, value.kernel)
    tokens, key_kernel, value_kernel = (ops.cast(array, attention.compute_dtype) for array in arrays)
    query = apply_einsum_dense(attention.query, queries, 1, scale)  # (B, t, K, Dh)
    heads_shape, width = query.shape[1:3], tokens.shape[-1]
    rows = (-1, math.prod(heads_shape))  # B, t K
    attending = ops.reshape(_multiply_heads(query, ops.transpose(key_kernel, (1, 2, 0))), (*rows, width))
    bias = None if sizes is None else log_sizes(sizes)[:, None, :]
    if key.bias is not None:
        # This term is the same for all keys, so the softmax cancels it. It is computed to give `key/bias` a gradient.
        products = query * ops.cast(key.bias, query.dtype)
        term = ops.cast(ops.reshape(ops.sum(products, axis=-1), (*rows, 1)), "float32")
        bias = term if bias is None else term + bias
    weights = ops.cast(attention_weights(attending, tokens, bias), tokens.dtype)  # (B, t K, T)
    weights = attention.dropout(weights, training=training)
    received = ops.reshape(ops.matmul(weights, tokens), (-1, *heads_shape, width))
    heads = _multiply_heads(received, ops.transpose(value_kernel, (1, 0, 2)))
    if value.bias is not None:
        share = ops.reshape(ops.sum(weights, axis=-1), (-1, *heads_shape, 1))  # Without dropout, all sums are 1.
        heads = heads + share * ops.cast(value.bias, heads.dtype)
    return attention.project(heads)


def _multiply_heads(values, kernels):
    """Multiplies values (B, t, K, x) by the heads' kernels (K, x, y). Returns (B, t, K, y)."""
    _, num_queries, num_heads, width = values.shape
    rows = ops.reshape(ops.transpose(values, (2, 0, 1, 3)), (num_heads, -1, width))  # (K, B t, x)
    products = ops.reshape(ops.matmul(rows, kernels), (num_heads, -1, num_queries, kernels.shape[-1]))
    return ops.transpose(products, (1, 2, 0, 3))
