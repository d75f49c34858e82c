"""Pooling by attention. Shapes: B batch, T tokens, D hidden, K heads, M MLP."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_count
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.transformer.attention import MultiHeadSelfAttention
from keras_vit.layers.transformer.few_queries import attend
from keras_vit.layers.transformer.layer_normalization import LayerNormalization
from keras_vit.layers.transformer.mlp_block import MlpBlock


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(BaseLayer):
    """Pools tokens with a learned probe that attends to them, followed by an MLP.

    This is the MAP head of Scaling ViT (arXiv 2106.04560, section 3.3) and SigLIP, as in google-research/big_vision:
    `y = MHA(probe, z, z)`, then `y + MLP(LN(y))`. There is no residual connection around the attention.

    Args:
        num_heads: Number K of attention heads, a divisor of D.
        mlp_dim: Width M of the MLP's hidden layer.
        mlp: The MLP's activation, as in `MlpBlock`.
        layer_norm_epsilon: Number that is added to the variance in the LayerNorm.
        num_prefix_tokens: Number of tokens at the beginning of the sequence that are not pooled, from 0 to T - 1.

    Call arguments:
        tokens: (B, T, D)
        attention_mask: Booleans (B, 1, T), whether the probe attends to each token. `None`: it attends to all.
        training: Whether the call is part of a training step.

    Returns:
        (B, D)

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.AttentionPooling(num_heads=3, mlp_dim=32)(keras.ops.ones((2, 7, 12))).shape)
    (2, 12)
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        mlp: str = "gelu_tanh",
        layer_norm_epsilon: float = 1e-6,
        num_prefix_tokens: int = 0,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.mlp = mlp
        self.layer_norm_epsilon = layer_norm_epsilon
        self.num_prefix_tokens = check_count("num_prefix_tokens", num_prefix_tokens)

        self.attention = MultiHeadSelfAttention(num_heads, **self.part_arguments("attention"))
        self.norm = LayerNormalization(epsilon=layer_norm_epsilon, **self.part_arguments("norm"))
        self.mlp_block = MlpBlock(mlp_dim, mlp, **self.part_arguments("mlp"))

    def build(self, tokens_shape, attention_mask_shape=None):
        self.probe = self.add_weight(name="probe", shape=(1, 1, tokens_shape[-1]), initializer="glorot_uniform")
        self.attention.build(tokens_shape)
        pooled_shape = (tokens_shape[0], 1, tokens_shape[-1])
        self.norm.build(pooled_shape)
        self.mlp_block.build(pooled_shape)

    def attention_weights(self, tokens):
        """Returns the attention weights of the probe for all tokens. They are 0 for tokens that are not pooled.

        Args:
            tokens: (B, T, D)

        Returns:
            (B, K, 1, T), as in `MultiHeadSelfAttention.attention_weights`.
        """
        pooled_tokens = tokens[:, self.num_prefix_tokens :]
        weights = self.attention.attention_weights(pooled_tokens, queries=self._probe_for(tokens))
        return ops.pad(weights, [(0, 0)] * 3 + [(self.num_prefix_tokens, 0)]) if self.num_prefix_tokens else weights

    def _probe_for(self, tokens):
        return ops.repeat(ops.cast(self.probe, tokens.dtype), ops.shape(tokens)[0], axis=0)  # (B, 1, D)

    def call(self, tokens, attention_mask=None, training=None):
        pooled_tokens, probe = tokens[:, self.num_prefix_tokens :], self._probe_for(tokens)
        if attention_mask is None:
            pooled = attend(self.attention, pooled_tokens, probe, training=training)  # (B, 1, D)
        else:
            mask = attention_mask[..., self.num_prefix_tokens :]
            pooled = self.attention(pooled_tokens, probe, attention_mask=mask, training=training)
        pooled = pooled + self.mlp_block(self.norm(pooled), training=training)
        return ops.squeeze(pooled, axis=1)

    def compute_output_shape(self, tokens_shape, attention_mask_shape=None):
        return (tokens_shape[0], tokens_shape[-1])

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D)."""
        num_tokens, hidden_dim = input_shape[1] - self.num_prefix_tokens, input_shape[2]
        attention = 2 * hidden_dim**2 + 2 * num_tokens * hidden_dim**2 + 2 * num_tokens * hidden_dim
        return attention + self.mlp_block.macs((None, 1, hidden_dim))
