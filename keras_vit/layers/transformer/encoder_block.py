"""One block of the Transformer encoder. Shapes: B batch, n sequences per image, T tokens, D hidden, K heads."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_choice
from keras_vit.layers.base import BaseLayer, check_layer
from keras_vit.layers.ops.layouts import add, residual_and_branch
from keras_vit.layers.regularization.drop_path import DropPath
from keras_vit.layers.regularization.dropout import Dropout
from keras_vit.layers.transformer.layer_normalization import LayerNormalization
from keras_vit.layers.transformer.layer_scale import LayerScale
from keras_vit.layers.transformer.rematerialization import rematerializable


@keras.saving.register_keras_serializable(package="keras_vit")
class EncoderBlock(BaseLayer):
    """Self-attention, then an MLP, each after a LayerNorm and with a residual connection.

    `z' = MSA(LN(z)) + z` and `z'' = MLP(LN(z')) + z'` (ViT, arXiv 2010.11929, eqs. 2 and 3). With `block_norm="post"`,
    the outputs are normalised instead: `z' = LN(MSA(z)) + z` and `z'' = LN(MLP(z')) + z'` (EVA-02-CLIP-E, arXiv
    2303.15389). LayerNorm is computed in float32 under any precision policy.

    The weight paths of `attention` and `mlp` contain the names of these layers. The models of this package use the
    names `"attention"` and `"mlp"`. An example of a path is `encoder_block_0/attention/query/kernel`.

    If the attribute `use_rematerialization` is `True`, the block saves memory in training (see
    `keras_vit.rematerialize`). The attribute is not saved.

    Args:
        attention: Layer that maps tokens (B, T, D) to (B, T, D), such as `MultiHeadSelfAttention`.
        mlp: Layer that maps tokens (B, T, D) to (B, T, D), such as `MlpBlock`. The block passes the argument `training`
            to both layers.
        layer_norm_epsilon: Number that is added to the variance in both LayerNorms.
        dropout_rate: Dropout rate after the attention. In [0, 1). The MLP has its own dropout.
        drop_path_rate: Probability that a residual branch of an image is dropped in training. In [0, 1).
        layer_scale: Initial value of the `LayerScale` of each branch. `None`: no `LayerScale`.
        block_norm: `"pre"` or `"post"`, whether the inputs or the outputs of `attention` and `mlp` are normalised.

    Call arguments:
        tokens: (B, T, D), or (B, n, T, D) for n sequences per image. A token attends only to tokens of its sequence.
        positions: Argument `positions` of `attention`, or `None`. It is the output of a `RotaryPositionEmbedding`.
        attention_mask: Argument `attention_mask` of `attention`, booleans (B, T, T), or `None`.
        training: Whether dropout and drop path are applied.

    Returns:
        Same shape as `tokens`.

    Raises:
        ValueError: If `attention` or `mlp` is not a layer, or if another argument is invalid.

    Example:

    >>> import keras
    >>> from keras_vit import layers
    >>> attention, mlp = layers.MultiHeadSelfAttention(num_heads=3), layers.MlpBlock(mlp_dim=32)
    >>> tuple(layers.EncoderBlock(attention, mlp)(keras.ops.ones((2, 7, 12))).shape)
    (2, 7, 12)
    """

    ATTRIBUTES: typing.ClassVar = {"mlp": "mlp_block"}

    def __init__(
        self,
        attention: keras.Layer,
        mlp: keras.Layer,
        layer_norm_epsilon: float = 1e-6,
        dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_scale: float | None = None,
        block_norm: str = "pre",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False  # Autocast would also round the positions.
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dropout_rate = dropout_rate
        self.drop_path_rate = drop_path_rate
        self.layer_scale = layer_scale
        self.block_norm = check_choice("block_norm", block_norm, ("pre", "post"))
        self.use_rematerialization = False

        # In Keras's files, weights are stored under the names of these attributes, in the order of assignment.
        self.attention_norm = LayerNormalization(layer_norm_epsilon, **self.part_arguments("attention_norm"))
        self.attention = check_layer("attention", attention, "keras_vit.layers.MultiHeadSelfAttention(num_heads=3)")
        self.dropout = Dropout(dropout_rate, **self.part_arguments("dropout"))
        self.mlp_norm = LayerNormalization(layer_norm_epsilon, **self.part_arguments("mlp_norm"))
        self.mlp_block = check_layer("mlp", mlp, "keras_vit.layers.MlpBlock(mlp_dim=32)")
        self.drop_path = DropPath(drop_path_rate, **self.part_arguments("drop_path"))
        if layer_scale is None:
            self.attention_scale = self.mlp_scale = keras.layers.Identity(**self.part_arguments("no_scale"))
        else:
            self.attention_scale = LayerScale(layer_scale, **self.part_arguments("attention_scale"))
            self.mlp_scale = LayerScale(layer_scale, **self.part_arguments("mlp_scale"))

    def build(self, input_shape):
        branch = self.attention_norm, self.attention, self.attention_scale, self.dropout
        for layer in (*branch, self.mlp_norm, self.mlp_block, self.mlp_scale):
            layer.build(input_shape)

    @rematerializable
    def call(self, tokens, positions=None, attention_mask=None, training=None):
        residual, tokens = residual_and_branch(ops.cast(tokens, self.compute_dtype))
        options = _given(positions=positions, attention_mask=attention_mask)
        branch = self.attention(self.norm_before(self.attention_norm, tokens), **options, training=training)
        tokens = self.add_attention(residual, branch, training)  # z' of eq. 2
        return self.add_mlp(tokens, training)  # z'' of eq. 3

    def add_attention(self, residual, branch, training=None):
        """Computes `z'` of eq. 2, (B, T, D), from the residual connection and the output of the attention."""
        branch = self._norm_after(self.attention_norm, self.dropout(branch, training=training))
        return add(residual, self.drop_path(self.attention_scale(branch), training=training))

    def add_mlp(self, tokens, training=None):
        """Computes `z''` of eq. 3, (B, T, D), from `z'`."""
        residual, tokens = residual_and_branch(tokens)
        branch = self.mlp_block(self.norm_before(self.mlp_norm, tokens), training=training)
        branch = self._norm_after(self.mlp_norm, branch)
        return add(residual, self.drop_path(self.mlp_scale(branch), training=training))

    def norm_before(self, norm, tokens):
        """Applies the LayerNorm `norm` to the input of a branch if `block_norm` is `"pre"`."""
        return norm(tokens) if self.block_norm == "pre" else tokens

    def _norm_after(self, norm, branch):
        return norm(branch) if self.block_norm == "post" else branch

    def attention_weights(self, tokens, positions=None):
        """Returns the attention weights of this block.

        Args:
            tokens: As in `call`.
            positions: As in `call`.

        Returns:
            (B, K, T, T) or (B, n, K, T, T), as in `MultiHeadSelfAttention.attention_weights`.
        """
        tokens = self.norm_before(self.attention_norm, tokens)
        return self.attention.attention_weights(tokens, **_given(positions=positions))

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D) or (B, n, T, D)."""
        return self.attention.macs(input_shape) + self.mlp_block.macs(input_shape)


def _given(**options):
    """The options that are not `None`. An attention of another kind may have no such arguments."""
    return {name: value for name, value in options.items() if value is not None}
