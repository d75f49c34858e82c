"""One block of the Transformer encoder. B batch, n lines of tokens, T tokens, D hidden, K heads."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_count, check_positive_integer
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.ops.textbook import reshape_like, textbook_multiply
from keras_vit.layers.transformer.attention import MultiHeadSelfAttention
from keras_vit.layers.transformer.drop_path import DropPath
from keras_vit.layers.transformer.dropout import Dropout
from keras_vit.layers.transformer.layer_normalization import LayerNormalization
from keras_vit.layers.transformer.layer_scale import LayerScale
from keras_vit.layers.transformer.mlp_block import MlpBlock
from keras_vit.layers.transformer.token_merging import TokenMerging


class _Seeds(typing.NamedTuple):
    """The seeds of one call in training, one for each random part."""

    attention: typing.Any = None
    dropout: typing.Any = None
    mlp: typing.Any = None
    attention_path: typing.Any = None
    mlp_path: typing.Any = None


@keras.saving.register_keras_serializable(package="keras_vit")
class EncoderBlock(CompositeLayer):
    """Self-attention, then an MLP, each behind a LayerNorm and beside a residual connection.

    `z' = MSA(LN(z)) + z` and `z'' = MLP(LN(z')) + z'` (ViT, arXiv 2010.11929, eqs. 2 and 3). LayerNorm is computed in
    float32 under any precision policy.

    With `token_merging`, similar tokens are merged between the two, by their keys (ToMe, arXiv 2210.09461, section 3;
    see `TokenMerging`), and the attention counts a token as often as there are patches in it. The weights are the same.

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
        token_merging: How many tokens r are merged into others; 0: none. Not with relative positions.
        num_prefix_tokens: How many tokens, the first, are never merged.

    Call arguments:
        tokens: (B, T, D), or (B, n, T, D) for n lines, each of which attends to itself.
        sizes: With `token_merging`, (B, T) integers, how many patches each token stands for; `None`: one each.
        num_outputs: How many of the tokens, the first, are returned, for little of the work: of the others these need
            what they attend to, and nothing else. Nothing is merged then, as the tokens in front never are. `None`:
            all. Not with relative positions or lines of tokens.
        training: Whether dropout and drop path act.

    Returns:
        (B, T, D) or (B, n, T, D), as `tokens`. With `token_merging` the tokens that are left, (B, T - r, D), and their
        sizes, (B, T - r) int32. With `num_outputs` as many tokens, (B, num_outputs, D), and sizes.

    Raises:
        ValueError: If tokens are to be merged where there are relative positions or lines of tokens, sizes come
            without `token_merging`, or `num_outputs` is less than one, more than are never merged, or there with
            relative positions or lines of tokens.

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
        token_merging=0,
        num_prefix_tokens=0,
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
        self.token_merging = check_count("token_merging", token_merging)
        self.num_prefix_tokens = num_prefix_tokens
        self.use_rematerialization = False

        self.attention_norm = LayerNormalization(epsilon=layer_norm_epsilon, **self.part_arguments("attention_norm"))
        attention = (num_heads, attention_dropout_rate, qk_norm, layer_norm_epsilon, relative_positions)
        self.attention = MultiHeadSelfAttention(*attention, **self.part_arguments("attention"))
        self.dropout = Dropout(dropout_rate, **self.part_arguments("dropout"))
        self.merging = self._merging() if token_merging else None
        self.mlp_norm = LayerNormalization(epsilon=layer_norm_epsilon, **self.part_arguments("mlp_norm"))
        self.mlp_block = MlpBlock(mlp_dim, mlp, dropout_rate, **self.part_arguments("mlp"))
        self.drop_path = DropPath(drop_path_rate, **self.part_arguments("drop_path"))
        if layer_scale is None:
            self.attention_scale = self.mlp_scale = keras.layers.Identity(**self.part_arguments("no_scale"))
        else:
            self.attention_scale = LayerScale(layer_scale, **self.part_arguments("attention_scale"))
            self.mlp_scale = LayerScale(layer_scale, **self.part_arguments("mlp_scale"))

    def _merging(self):
        if self.relative_positions:
            raise ValueError(
                f"A merged token is at no distance from others, so relative_positions must be False where tokens are "
                f"merged. Received: token_merging={self.token_merging}, relative_positions=True"
            )
        return TokenMerging(self.token_merging, self.num_prefix_tokens, **self.part_arguments("merging"))

    def build(self, input_shape):
        if self.token_merging and len(input_shape) != 3:
            raise ValueError(
                f"Tokens are merged in one sequence for each image, (B, T, D). Received: tokens of shape "
                f"{tuple(input_shape)} with token_merging={self.token_merging}"
            )
        for layer in (self.attention_norm, self.attention, self.attention_scale, self.dropout):
            layer.build(input_shape)
        for layer in (self.mlp_norm, self.mlp_block, self.mlp_scale):
            layer.build(input_shape)
        if self.merging is not None:  # On JAX Keras runs a model with a layer that is not built once more, uncompiled.
            self.merging.build(input_shape)

    def call(self, tokens, sizes=None, num_outputs=None, training=None):
        # Drawn here, whether rematerialised or not: what is computed a second time must be random in the same way, and
        # a generator must not advance inside what is.
        seeds = self._draw_seeds() if training else _Seeds()
        if sizes is not None and not self.token_merging:
            raise ValueError(
                "Sizes are of tokens that were merged: build the block with token_merging=r, r at least 1."
            )
        if num_outputs is not None:
            self._check_num_outputs(num_outputs, tokens)
            return self._call_for_first(num_outputs, tokens, sizes, seeds, training)
        if self.token_merging:
            return self._call_merging(tokens, sizes, seeds, training)
        return self._rematerialized(lambda tokens: self._transform(tokens, seeds, training), training)(tokens)

    def _check_num_outputs(self, num_outputs, tokens):
        reason = self.why_not_first(check_positive_integer("num_outputs", num_outputs), tokens.shape)
        if reason is not None:
            raise ValueError(reason)

    def why_not_first(self, num_outputs, tokens_shape):
        """Why the first `num_outputs` of tokens of a shape cannot be computed alone, in words; `None` if they can."""
        if self.relative_positions or len(tokens_shape) != 3:
            return (
                f"With relative positions, or in lines, all tokens are computed: num_outputs must be None. Received: "
                f"num_outputs={num_outputs}, relative_positions={self.relative_positions}, tokens of shape "
                f"{tuple(tokens_shape)}"
            )
        if self.token_merging and num_outputs > self.num_prefix_tokens:
            return (
                f"Tokens of patches may be merged, so num_outputs must be at most num_prefix_tokens. Received: "
                f"num_outputs={num_outputs}, num_prefix_tokens={self.num_prefix_tokens}"
            )
        return None

    def _rematerialized(self, transform, training):
        return keras.remat(transform) if training and self.use_rematerialization else transform

    def _call_for_first(self, num_outputs, tokens, sizes, seeds, training):
        def transform(tokens):
            return self._transform_first(num_outputs, tokens, sizes, seeds, training)

        first = self._rematerialized(transform, training)(tokens)
        return (first, ops.ones(ops.shape(first)[:2], "int32")) if self.token_merging else first

    def _call_merging(self, tokens, sizes, seeds, training):
        def transform(tokens):
            left, sizes_left = self._transform_and_merge(tokens, sizes, seeds, training)
            return left, ops.cast(sizes_left, "float32")  # TensorFlow cannot compute integers again.

        if training and self.use_rematerialization:
            left, sizes_left = keras.remat(transform)(tokens)
            return left, ops.cast(sizes_left, "int32")
        return self._transform_and_merge(tokens, sizes, seeds, training)

    def _draw_seeds(self):
        return _Seeds(
            attention=self.attention.draw_seed(),
            dropout=self.dropout.draw_seed(),
            mlp=self.mlp_block.draw_seeds(),
            attention_path=self.drop_path.draw_seed(),
            mlp_path=self.drop_path.draw_seed(),
        )

    def _transform(self, tokens, seeds, training):
        rows = _as_rows(tokens)
        branch = self.attention(self.attention_norm(_as_tokens(rows, tokens)), seed=seeds.attention, training=training)
        rows = self._add_attention(rows, branch, seeds, training)
        return _as_tokens(self._add_mlp(rows, tokens, seeds, training), tokens)

    def _transform_first(self, num_outputs, tokens, sizes, seeds, training):
        tokens = _as_tokens(_as_rows(tokens), tokens)
        normalized, tokens = self.attention_norm(tokens), _first(tokens, num_outputs)
        branch, _ = self.attention.attend_in_proportion(
            normalized, sizes, _first(normalized, num_outputs), seed=seeds.attention, training=training
        )
        rows = self._add_attention(_as_rows(tokens), branch, seeds, training)
        return _as_tokens(self._add_mlp(rows, tokens, seeds, training), tokens)

    def _transform_and_merge(self, tokens, sizes, seeds, training):
        rows = _as_rows(tokens)
        branch, keys = self.attention.attend_in_proportion(
            self.attention_norm(_as_tokens(rows, tokens)), sizes, seed=seeds.attention, training=training
        )
        tokens = _as_tokens(self._add_attention(rows, branch, seeds, training), tokens)
        metric = ops.mean(ops.cast(keys, "float32"), axis=1)  # (B, T, Dh)
        tokens, sizes = self.merging(tokens, metric, sizes)
        rows = self._add_mlp(_as_rows(tokens), tokens, seeds, training)
        return _as_tokens(rows, tokens), sizes

    def _add_attention(self, rows, branch, seeds, training):
        branch = self.attention_scale(self.dropout(branch, seed=seeds.dropout, training=training))
        return rows + _as_rows(self.drop_path(branch, seed=seeds.attention_path, training=training))

    def _add_mlp(self, rows, tokens, seeds, training):
        branch = self.mlp_block(self.mlp_norm(_as_tokens(rows, tokens)), seeds=seeds.mlp, training=training)
        return rows + _as_rows(self.drop_path(self.mlp_scale(branch), seed=seeds.mlp_path, training=training))

    def attention_weights(self, tokens, sizes=None):
        """How much each token receives from every other in this block.

        Args:
            tokens: (B, T, D) or (B, n, T, D), what goes into the block.
            sizes: (B, T), with `token_merging` how many patches each token stands for; `None`: one each.

        Returns:
            (B, K, T, T) or (B, n, K, T, T), as from `MultiHeadSelfAttention.attention_weights`.
        """
        return self.attention.attention_weights(self.attention_norm(tokens), sizes=sizes)

    def compute_output_shape(self, input_shape):
        return self.merging.compute_output_shape(input_shape) if self.token_merging else input_shape

    def compute_output_spec(self, tokens, sizes=None, num_outputs=None, training=None):
        shape = self.compute_output_shape(tokens.shape)
        shape = shape[0] if self.token_merging else shape
        if num_outputs is not None:
            self._check_num_outputs(num_outputs, tokens)
            shape = (shape[0], num_outputs, shape[-1])
        outputs = keras.KerasTensor(shape, self.compute_dtype)
        return (outputs, keras.KerasTensor(shape[:2], "int32")) if self.token_merging else outputs

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D) or (B, n, T, D)."""
        hidden_dim, macs = input_shape[-1], self.attention.macs(input_shape)
        if self.token_merging:
            macs += self.merging.macs(input_shape, (*input_shape[:-1], hidden_dim // self.num_heads))
            input_shape, _ = self.merging.compute_output_shape(input_shape)
        num_tokens = math.prod(input_shape[1:-1])  # To the MLP it is all the same in which line they stand.
        return macs + self.mlp_block.macs((None, num_tokens, hidden_dim))

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
            "token_merging": self.token_merging,
            "num_prefix_tokens": self.num_prefix_tokens,
        }


def _first(tokens, number):
    """(B, T, D) to (B, number, D), a size that TensorFlow does not know where it does not know T."""
    return ops.reshape(tokens[:, :number], (-1, number, tokens.shape[-1]))


# Residual connections add rows, and each branch makes tokens of them for itself. Else XLA on CPUs computes the gradient
# of a residual connection from those of all later branches again, in every block (docs/decisions/0018).
def _as_rows(tokens):
    """(B, T, D) as (B T, D)."""
    return tokens if textbook_multiply() else ops.reshape(tokens, (-1, tokens.shape[-1]))


def _as_tokens(rows, tokens):
    """(B T, D) in the shape of `tokens`."""
    return rows if textbook_multiply() else reshape_like(rows, tokens, 1, tokens.shape[-1:])
