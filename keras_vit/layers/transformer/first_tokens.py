"""Computes only the first tokens of a block's output. Shapes: B batch, T tokens, D hidden."""

import keras
from keras import ops

from keras_vit.layers.ops.layouts import fork
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
    with keras.name_scope(block.name):
        _, tokens = fork(ops.cast(tokens, block.compute_dtype))
        normalized = block.norm_before(block.attention_norm, tokens)
        arguments = {"sizes" if isinstance(block, MergingEncoderBlock) else "positions": argument}
        arguments["queries"] = _first(normalized, num_outputs)
        branch = block.attention(normalized, **arguments, training=training)
        residual, _ = fork(_first(tokens, num_outputs))
        first = block.add_mlp(block.add_attention(residual, branch, training), training)
    return (first, ops.ones(ops.shape(first)[:2], "int32")) if isinstance(block, MergingEncoderBlock) else first


def _first(tokens, number):
    """Returns the first tokens, (B, number, D). Their static shape is known in TensorFlow even if T is unknown."""
    return ops.reshape(tokens[:, :number], (-1, number, tokens.shape[-1]))
