"""One block of the Transformer encoder. B batch, n lines of tokens, T tokens, D hidden, K heads."""

import math
import typing

import keras

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.layer_normalization import LayerNormalization
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.mlp_block import MlpBlock


class _Seeds(typing.NamedTuple):
    """The seeds of one call in training, one for each random part."""

    attention: typing.Any = None
    dropout: typing.Any = None
    mlp: typing.Any = None
    attention_path: typing.Any = None
    mlp_path: typing.Any = None


@keras.saving.register_keras_serializable(package="keras_vit")
class EncoderBlock(keras.layers.Layer):
    """Self-attention, then an MLP, each behind a LayerNorm and beside a residual connection.

    `z' = MSA(LN(z)) + z` and `z'' = MLP(LN(z')) + z'` (ViT, arXiv 2010.11929, eqs. 2 and 3). LayerNorm is computed in
    float32 under any precision policy.

    With the attribute `use_rematerialization` (see `keras_vit.rematerialize`) the block keeps its input alone in
    training, and computes what the gradients need a second time. It is no argument, and no part of the config.

    Args:
        num_heads: Attention heads.
        mlp_dim: Width of the MLP's hidden layer.
        mlp: The MLP's activation, as in `MlpBlock`.
        layer_norm_epsilon: Added to the variance in both LayerNorms.
        dropout_rate: Dropout after the attention's output and both MLP layers. In [0, 1).
        attention_dropout_rate: Dropout of the attention weights. In [0, 1).
        drop_path_rate: Probability of dropping a residual branch, for each image and branch. In [0, 1).
        layer_scale: Initial value of the `LayerScale` of each branch, or `None` for none.
        qk_norm: Whether queries and keys are normalised, as in `MultiHeadSelfAttention`.
        relative_positions: Whether the attention has relative positions, as in `MultiHeadSelfAttention`.

    Call arguments:
        tokens: (B, T, D), or (B, n, T, D) for n lines, each of which attends to itself.
        training: Whether dropout and drop path act.

    Returns:
        (B, T, D) or (B, n, T, D), as `tokens`.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.EncoderBlock(num_heads=3, mlp_dim=32)(keras.ops.ones((2, 7, 12))).shape)
    (2, 7, 12)
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        mlp="gelu_tanh",
        layer_norm_epsilon=1e-6,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.0,
        layer_scale=None,
        qk_norm=False,
        relative_positions=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.mlp = mlp
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.drop_path_rate = drop_path_rate
        self.layer_scale = layer_scale
        self.qk_norm = qk_norm
        self.relative_positions = relative_positions
        self.use_rematerialization = False

        policy = {"dtype": self.dtype_policy, "trainable": self.trainable}
        self.attention_norm = LayerNormalization(epsilon=layer_norm_epsilon, name="attention_norm", **policy)
        self.attention = MultiHeadSelfAttention(
            num_heads,
            attention_dropout_rate,
            qk_norm,
            layer_norm_epsilon,
            relative_positions,
            name="attention",
            **policy,
        )
        self.dropout = Dropout(dropout_rate, name="dropout", **policy)
        self.mlp_norm = LayerNormalization(epsilon=layer_norm_epsilon, name="mlp_norm", **policy)
        self.mlp_block = MlpBlock(mlp_dim, mlp, dropout_rate, name="mlp", **policy)
        self.drop_path = DropPath(drop_path_rate, name="drop_path", **policy)
        if layer_scale is None:
            self.attention_scale = self.mlp_scale = keras.layers.Identity(name="no_scale", **policy)
        else:
            self.attention_scale = LayerScale(layer_scale, name="attention_scale", **policy)
            self.mlp_scale = LayerScale(layer_scale, name="mlp_scale", **policy)

    def build(self, input_shape):
        for layer in (self.attention_norm, self.attention, self.attention_scale, self.dropout):
            layer.build(input_shape)
        for layer in (self.mlp_norm, self.mlp_block, self.mlp_scale):
            layer.build(input_shape)

    def call(self, tokens, training=None):
        # Drawn here, whether rematerialised or not: what is computed a second time must be random in the same way, and
        # a generator must not advance inside what is.
        seeds = self._draw_seeds() if training else _Seeds()
        if training and self.use_rematerialization:
            return keras.remat(lambda tokens: self._transform(tokens, seeds, training))(tokens)
        return self._transform(tokens, seeds, training)

    def _draw_seeds(self):
        return _Seeds(
            attention=self.attention.draw_seed(),
            dropout=self.dropout.draw_seed(),
            mlp=self.mlp_block.draw_seeds(),
            attention_path=self.drop_path.draw_seed(),
            mlp_path=self.drop_path.draw_seed(),
        )

    def _transform(self, tokens, seeds, training):
        branch = self.attention(self.attention_norm(tokens), seed=seeds.attention, training=training)
        branch = self.attention_scale(self.dropout(branch, seed=seeds.dropout, training=training))
        tokens = tokens + self.drop_path(branch, seed=seeds.attention_path, training=training)
        branch = self.mlp_block(self.mlp_norm(tokens), seeds=seeds.mlp, training=training)
        return tokens + self.drop_path(self.mlp_scale(branch), seed=seeds.mlp_path, training=training)

    def attention_weights(self, tokens):
        """How much each token receives from every other in this block.

        Args:
            tokens: (B, T, D) or (B, n, T, D), what goes into the block.

        Returns:
            (B, K, T, T) or (B, n, K, T, T), as from `MultiHeadSelfAttention.attention_weights`.
        """
        return self.attention.attention_weights(self.attention_norm(tokens))

    def compute_output_shape(self, input_shape):
        return input_shape

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D) or (B, n, T, D)."""
        num_tokens = math.prod(input_shape[1:-1])  # To the MLP it is all the same in which line they stand.
        return self.attention.macs(input_shape) + self.mlp_block.macs((None, num_tokens, input_shape[-1]))

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "mlp": self.mlp,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "drop_path_rate": self.drop_path_rate,
            "layer_scale": self.layer_scale,
            "qk_norm": self.qk_norm,
            "relative_positions": self.relative_positions,
        }
