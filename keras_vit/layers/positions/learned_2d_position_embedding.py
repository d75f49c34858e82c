"""Learned position embedding by row and column. Shapes: B batch, h w grid, T tokens, D hidden."""

import keras
from keras import ops

from keras_vit import resampling
from keras_vit.layers.positions.learned_position_embedding import LearnedPositionEmbedding


@keras.saving.register_keras_serializable(package="keras_vit")
class Learned2DPositionEmbedding(LearnedPositionEmbedding):
    """Adds learned embeddings of the column and the row to each patch token.

    The embedding of the patch in row y and column x is the concatenation `[X_x, Y_y]`. The table X has w rows and the
    table Y has h rows, all of width D / 2 (ViT, arXiv 2010.11929, appendix D.4, "2-dimensional positional embedding").
    Each prefix token has a row of width D. All tables are initialised from N(0, 0.02). If the image's grid differs from
    `grid_size`, the tables X and Y are interpolated in float32.

    Args:
        grid_size: Size of the tables, (rows, columns) of patches.
        num_prefix_rows: Number of rows for tokens before the patch tokens.
        interpolation: Method of interpolation, one of `keras_vit.resampling.METHODS`.

    Call arguments:
        tokens: (B, T, D), with the patch tokens last. D is even.
        patches: As in `LearnedPositionEmbedding`.
        grids: Not accepted. Images of different sizes need a `LearnedPositionEmbedding`.

    Returns:
        (B, T, D)

    Raises:
        ValueError: If D is odd, or for one of the reasons in `LearnedPositionEmbedding`.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.Learned2DPositionEmbedding(grid_size=(2, 3), num_prefix_rows=1)
    >>> tuple(layer(keras.ops.zeros((5, 7, 8))).shape)
    (5, 7, 8)
    >>> [tuple(weight.shape) for weight in layer.weights]
    [(1, 8), (3, 4), (2, 4)]
    """

    def build(self, tokens_shape, patches_shape=None, grids_shape=None):
        hidden_dim = tokens_shape[-1]
        if hidden_dim % 2:
            raise ValueError(
                f"The tokens' width must be even, because half of it is used for each coordinate. Received: tokens of "
                f"shape {tuple(tokens_shape)}"
            )
        height, width = self.grid_size
        if self.num_prefix_rows:
            self.prefix = self._add_table("prefix", self.num_prefix_rows, hidden_dim)
        self.columns = self._add_table("columns", width, hidden_dim // 2)
        self.rows = self._add_table("rows", height, hidden_dim // 2)

    def _add_to_each(self, tokens, patches, grids):
        raise ValueError("Images of different sizes need a LearnedPositionEmbedding. Received: tables of two axes.")

    def _rows(self, grid):
        height, width = grid
        to_height, to_width = resampling.grid_matrices(self.grid_size, grid, self.interpolation, ops)
        y = ops.repeat(self._resized(self.rows, to_height)[:, None], width, axis=1)  # (h, w, D/2)
        x = ops.repeat(self._resized(self.columns, to_width)[None], height, axis=0)
        table = ops.concatenate([x, y], axis=-1)
        table = ops.reshape(table, (height * width, table.shape[-1]))
        if not self.num_prefix_rows:
            return table
        return ops.concatenate([ops.convert_to_tensor(self.prefix), table], axis=0)

    def _resized(self, table, matrix):
        table = ops.convert_to_tensor(table)
        return ops.cast(ops.matmul(matrix, ops.cast(table, "float32")), table.dtype)
