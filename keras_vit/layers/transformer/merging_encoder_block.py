"""An encoder block that merges tokens. Shapes: B batch, T tokens, r merged tokens, D hidden, K heads, Dh = D / K."""

import typing

import keras
from keras import ops

from keras_vit.layers.base import check_layer
from keras_vit.layers.ops.layouts import residual_and_branch
from keras_vit.layers.transformer.attention import MultiHeadSelfAttention
from keras_vit.layers.transformer.encoder_block import EncoderBlock
from keras_vit.layers.transformer.rematerialization import rematerializable


@keras.saving.register_keras_serializable(package="keras_vit")
class MergingEncoderBlock(EncoderBlock):
    """An `EncoderBlock` that merges similar tokens between the attention and the MLP.

    Tokens are merged if their keys are similar. In the attention, each token counts in proportion to the number s of
    patches that it represents: `A = softmax(q k^T / sqrt(Dh) + log s)` (ToMe, arXiv 2210.09461, section 3 and eq. 1).
    The layer has the same weights as an `EncoderBlock`.

    Args:
        attention: `MultiHeadSelfAttention` without relative and rotary positions.
        mlp: As in `EncoderBlock`.
        merging: `TokenMerging`
        layer_norm_epsilon: As in `EncoderBlock`.
        dropout_rate: As in `EncoderBlock`.
        drop_path_rate: As in `EncoderBlock`.
        layer_scale: As in `EncoderBlock`.
        block_norm: As in `EncoderBlock`.

    Call arguments:
        tokens: (B, T, D)
        sizes: (B, T) integers, number of patches that each token represents. `None`: all sizes are 1.
        training: Whether dropout and drop path are applied.

    Returns:
        The tokens after merging, (B, T - r, D), and their sizes, int32 (B, T - r).

    Raises:
        ValueError: If `attention` is not a `MultiHeadSelfAttention`, if it has relative or rotary positions, or if
            `tokens` have rank 4.

    Example:

    >>> import keras
    >>> from keras_vit import layers
    >>> attention, mlp = layers.MultiHeadSelfAttention(num_heads=3), layers.MlpBlock(mlp_dim=32)
    >>> block = layers.MergingEncoderBlock(attention, mlp, layers.TokenMerging(num_merged=2))
    >>> tokens, sizes = block(keras.ops.ones((2, 7, 12)))
    >>> tuple(tokens.shape), tuple(sizes.shape)
    ((2, 5, 12), (2, 5))
    """

    def __init__(
        self,
        attention: keras.Layer,
        mlp: keras.Layer,
        merging: keras.Layer,
        layer_norm_epsilon: float = 1e-6,
        dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_scale: float | None = None,
        block_norm: str = "pre",
        **kwargs: typing.Any,
    ) -> None:
        rates = (dropout_rate, drop_path_rate)
        super().__init__(attention, mlp, layer_norm_epsilon, *rates, layer_scale, block_norm, **kwargs)
        self.merging = check_layer("merging", merging, "keras_vit.layers.TokenMerging(num_merged=3)")
        is_known = isinstance(attention, MultiHeadSelfAttention)
        if not is_known or attention.relative_positions or attention.rotary is not None:
            raise ValueError(
                f"attention must be a MultiHeadSelfAttention without relative and rotary positions. Received: "
                f"attention={attention!r}"
            )

    def build(self, input_shape):
        if len(input_shape) != 3:
            raise ValueError(
                f"Tokens can only be merged if there is one sequence for each image, (B, T, D). Received: tokens of "
                f"shape {tuple(input_shape)}"
            )
        super().build(input_shape)
        self.merging.build(input_shape)  # On JAX, Keras runs a model twice if one of its layers is not built.

    @rematerializable
    def call(self, tokens, sizes=None, training=None):
        residual, tokens = residual_and_branch(ops.cast(tokens, self.compute_dtype))
        normalized = self.norm_before(self.attention_norm, tokens)
        query, key = self.attention.queries_and_keys(normalized)
        branch = self.attention.attend(query, key, normalized, sizes, training=training)
        tokens = self.add_attention(residual, branch, training)
        metric = ops.mean(ops.cast(key, "float32"), axis=1)  # (B, T, Dh)
        tokens, sizes = self.merging(tokens, metric, sizes)
        return self.add_mlp(tokens, training), sizes

    def attention_weights(self, tokens, sizes=None):
        """Returns the attention weights of this block, (B, K, T, T). `tokens` and `sizes` are as in `call`."""
        return self.attention.attention_weights(self.norm_before(self.attention_norm, tokens), sizes=sizes)

    def compute_output_shape(self, tokens_shape, sizes_shape=None):
        return self.merging.compute_output_shape(tokens_shape)

    def compute_output_spec(self, tokens, sizes=None, training=None):
        tokens_shape, sizes_shape = self.compute_output_shape(tokens.shape)
        return keras.KerasTensor(tokens_shape, self.compute_dtype), keras.KerasTensor(sizes_shape, "int32")

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D)."""
        metric_shape = (*input_shape[:-1], input_shape[-1] // self.attention.num_heads)
        merging = self.merging.macs(input_shape, metric_shape)
        merged_shape, _ = self.merging.compute_output_shape(input_shape)
        return self.attention.macs(input_shape) + merging + self.mlp_block.macs(merged_shape)


# In Keras's files, a layer is stored under the name of its class. With the name "EncoderBlock", a model that merges
# tokens can load the files of a model that does not merge tokens.
MergingEncoderBlock.__name__ = EncoderBlock.__name__
