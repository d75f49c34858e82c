"""A block that attends along the rows of the grid, then along its columns.

B batch, h w grid, N = h w patches, D hidden, K heads.
"""

import keras
from keras import ops

from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.transformer.encoder_block import EncoderBlock


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialEncoderBlock(CompositeLayer):
    """Self-attention within each row and an MLP, then self-attention within each column and an MLP.

    Axial-ViT (ViT, arXiv 2010.11929, appendix D.6, "Axial attention"; arXiv 1912.12180): two blocks of eqs. 2 and 3,
    each with its own LayerNorms, residual connections and MLP. So the grid's N^2 pairs of patches become N (h + w),
    and there are twice as many MLPs. The tokens are those of the patches alone: where a class token would stand, the
    paper does not say.

    The two blocks are its layers `row` and `column`, each an `EncoderBlock` with the arguments below.

    Args:
        num_heads: Attention heads.
        mlp_dim: Width of the MLPs' hidden layer.
        mlp: The MLPs' activation, as in `MlpBlock`.
        layer_norm_epsilon: Added to the variance in every LayerNorm.
        dropout_rate: Dropout after the attentions' output and all MLP layers. In [0, 1).
        attention_dropout_rate: Dropout of the attention weights. In [0, 1).
        drop_path_rate: Probability of dropping a residual branch, for each image and branch. In [0, 1).
        layer_scale: Initial value of the `LayerScale` of each branch, or `None` for none.
        qk_norm: Whether queries and keys are normalised, as in `MultiHeadSelfAttention`.

    Call arguments:
        tokens: (B, N, D), row by row.
        patches: (B, h, w, D), the map that they come from; only its size is read.
        training: Whether dropout and drop path act.

    Returns:
        (B, N, D)

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.AxialEncoderBlock(num_heads=3, mlp_dim=32)
    >>> tuple(layer(keras.ops.ones((2, 6, 12)), keras.ops.ones((2, 2, 3, 12))).shape)
    (2, 6, 12)
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
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.block_arguments = {
            "num_heads": num_heads,
            "mlp_dim": mlp_dim,
            "mlp": mlp,
            "layer_norm_epsilon": layer_norm_epsilon,
            "dropout_rate": dropout_rate,
            "attention_dropout_rate": attention_dropout_rate,
            "drop_path_rate": drop_path_rate,
            "layer_scale": layer_scale,
            "qk_norm": qk_norm,
        }
        self.row = EncoderBlock(**self.block_arguments, **self.part_arguments("row"))
        self.column = EncoderBlock(**self.block_arguments, **self.part_arguments("column"))

    @property
    def use_rematerialization(self):
        """As in `EncoderBlock`, for both passes."""
        return self.row.use_rematerialization

    @use_rematerialization.setter
    def use_rematerialization(self, enabled):
        self.row.use_rematerialization = self.column.use_rematerialization = enabled

    def build(self, tokens_shape, patches_shape):
        batch, height, width, _ = patches_shape
        self.row.build((batch, height, width, tokens_shape[-1]))
        self.column.build((batch, width, height, tokens_shape[-1]))

    def call(self, tokens, patches, training=None):
        grid = self.row(_in_rows(tokens, patches), training=training)  # (B, h, w, D)
        grid = self.column(_transposed(grid), training=training)  # (B, w, h, D)
        return ops.reshape(_transposed(grid), ops.shape(tokens))

    def attention_weights(self, tokens, patches):
        """How much each patch receives from every other, in either pass.

        Args:
            tokens: (B, N, D), what goes into the block.
            patches: (B, h, w, D), the map that they come from.

        Returns:
            (B, 2, K, N, N), the row pass and the column pass, which sees what the row pass puts out. float32; each row
            sums to one, and is zero outside the patch's row or column.
        """
        grid = _in_rows(tokens, patches)
        rows = self.row.attention_weights(grid)  # (B, h, K, w, w)
        columns = self.column.attention_weights(_transposed(self.row(grid, training=False)))  # (B, w, K, h, h)
        height, width = ops.shape(patches)[1:3]
        # Both as (B, K, h, w, h, w), of which a weight stands where the rows, or the columns, are the same.
        rows = ops.einsum("bykxu,yv->bkyxvu", rows, ops.eye(height))
        columns = ops.einsum("bxkyv,xu->bkyxvu", columns, ops.eye(width))
        num_patches = height * width
        return ops.reshape(ops.stack([rows, columns], axis=1), (-1, 2, self.row.num_heads, num_patches, num_patches))

    def compute_output_shape(self, tokens_shape, patches_shape):
        return tokens_shape

    def macs(self, tokens_shape, patches_shape):
        """Multiply-accumulates for one image of batches of shapes (B, N, D) and (B, h, w, D)."""
        batch, height, width, _ = patches_shape
        hidden_dim = tokens_shape[-1]
        return self.row.macs((batch, height, width, hidden_dim)) + self.column.macs((batch, width, height, hidden_dim))

    def get_config(self):
        return {**super().get_config(), **self.block_arguments}


def _in_rows(tokens, patches):
    """(B, N, D) as (B, h, w, D)."""
    return ops.reshape(tokens, (-1, *ops.shape(patches)[1:3], tokens.shape[-1]))


def _transposed(grid):
    return ops.transpose(grid, (0, 2, 1, 3))
