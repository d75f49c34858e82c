"""A block that attends along the rows of the grid, then along its columns.

Shapes: B batch, h w grid, N = h w patches, D hidden, K heads.
"""

import typing

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer, check_layer


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialEncoderBlock(BaseLayer):
    """Self-attention within each row and an MLP, then self-attention within each column and an MLP.

    This is the block of Axial-ViT (ViT, arXiv 2010.11929, appendix D.6, "Axial attention"; arXiv 1912.12180). It
    consists of two encoder blocks (eqs. 2 and 3). Attention within rows and columns reduces the number of pairs of
    patches from N^2 to N (h + w). The block has two MLPs instead of one. Only patch tokens are accepted, because the
    paper does not define the position of a class token in the grid.

    Args:
        row: `EncoderBlock` that is applied to the rows.
        column: `EncoderBlock` that is applied to the columns. In the models of this package, the two blocks are named
            `"row"` and `"column"`. The blocks' weight paths contain these names.

    Call arguments:
        tokens: (B, N, D), row by row.
        patches: (B, h, w, D), the map of patch tokens. Only its size is used.
        training: Whether dropout and drop path are applied.

    Returns:
        (B, N, D)

    Example:

    >>> import keras
    >>> from keras_vit import layers
    >>> def block():
    ...     return layers.EncoderBlock(layers.MultiHeadSelfAttention(num_heads=3), layers.MlpBlock(mlp_dim=32))
    >>> layer = layers.AxialEncoderBlock(row=block(), column=block())
    >>> tuple(layer(keras.ops.ones((2, 6, 12)), keras.ops.ones((2, 2, 3, 12))).shape)
    (2, 6, 12)
    """

    def __init__(self, row: keras.Layer, column: keras.Layer, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.row = check_layer("row", row, "keras_vit.layers.EncoderBlock(attention, mlp)")
        self.column = check_layer("column", column, "keras_vit.layers.EncoderBlock(attention, mlp)")

    def build(self, tokens_shape, patches_shape):
        batch, height, width, _ = patches_shape
        self.row.build((batch, height, width, tokens_shape[-1]))
        self.column.build((batch, width, height, tokens_shape[-1]))

    def call(self, tokens, patches, training=None):
        grid = self.row(_in_rows(tokens, patches), training=training)  # (B, h, w, D)
        grid = self.column(_transposed(grid), training=training)  # (B, w, h, D)
        return ops.reshape(_transposed(grid), ops.shape(tokens))

    def attention_weights(self, tokens, patches):
        """Returns the attention weights between the patches, within rows and within columns.

        Args:
            tokens: As in `call`.
            patches: As in `call`.

        Returns:
            float32 (B, 2, K, N, N): the weights within rows, then the weights within columns. The weights of each query
            patch sum to one. They are zero for patches of other rows (or columns).
        """
        grid = _in_rows(tokens, patches)
        rows = self.row.attention_weights(grid)  # (B, h, K, w, w)
        columns = self.column.attention_weights(_transposed(self.row(grid, training=False)))  # (B, w, K, h, h)
        height, width = ops.shape(patches)[1:3]
        # Both arrays become (B, K, h, w, h, w), with zeros between patches of different rows (or columns).
        rows = ops.einsum("bykxu,yv->bkyxvu", rows, ops.eye(height))
        columns = ops.einsum("bxkyv,xu->bkyxvu", columns, ops.eye(width))
        shape = (-1, 2, self.row.attention.num_heads, height * width, height * width)
        return ops.reshape(ops.stack([rows, columns], axis=1), shape)

    def macs(self, tokens_shape, patches_shape):
        """Multiply-accumulates for one image of batches of shapes (B, N, D) and (B, h, w, D)."""
        batch, height, width, _ = patches_shape
        hidden_dim = tokens_shape[-1]
        return self.row.macs((batch, height, width, hidden_dim)) + self.column.macs((batch, width, height, hidden_dim))


def _in_rows(tokens, patches):
    """Reshapes (B, N, D) to (B, h, w, D)."""
    return ops.reshape(tokens, (-1, *ops.shape(patches)[1:3], tokens.shape[-1]))


def _transposed(grid):
    return ops.transpose(grid, (0, 2, 1, 3))
