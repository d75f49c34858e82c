"""Learned position embedding. B batch, h w grid, N = h w patches, T tokens, D hidden, p prefix rows."""

import math
import typing

import keras
from keras import ops

from keras_vit import resampling


@keras.saving.register_keras_serializable(package="keras_vit")
class LearnedPositionEmbedding(keras.layers.Layer):
    """Adds one learned row to each token.

    `z_0 = [z_class; z_1; ...; z_N] + E_pos` (ViT, arXiv 2010.11929, eq. 1). The table has `num_prefix_rows` rows for
    the prefix tokens, then one for each patch, row by row. It is initialised from N(0, 0.02). Tokens without a row,
    such as prefix tokens if `num_prefix_rows` is 0, are returned unchanged.

    If the image's grid differs from `grid_size`, the patch rows are interpolated in float32. The authors do so to
    fine-tune at a higher resolution (ViT, section 3.2) with `scipy.ndimage.zoom(order=1)`, which is `"align_corners"`.

    Args:
        grid_size: Size of the table, (rows, columns) of patches.
        num_prefix_rows: Number of rows for tokens before the patch tokens.
        interpolation: Method, one of `keras_vit.resampling.METHODS`. Published weights are best used with the method of
            the project that published them.

    Call arguments:
        tokens: (B, T, D), with the patch tokens last.
        patches: (B, h, w, D), the map of patch tokens. Only its size is used. Needed if the grid is not `grid_size`, or
            if there are tokens without a row between the prefix and the patches.

    Returns:
        (B, T, D)

    Raises:
        ValueError: If `interpolation` is unknown, or there are fewer tokens than rows, or more tokens and no `patches`.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.LearnedPositionEmbedding(grid_size=(2, 3), num_prefix_rows=1)
    >>> tuple(layer(keras.ops.zeros((5, 7, 8))).shape)
    (5, 7, 8)
    >>> tuple(layer(keras.ops.zeros((5, 21, 8)), patches=keras.ops.zeros((5, 4, 5, 8))).shape)
    (5, 21, 8)
    """

    def __init__(
        self,
        grid_size: tuple[int, int],
        num_prefix_rows: int = 0,
        interpolation: str = "align_corners",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        resampling.check_method(interpolation)
        self.grid_size = tuple(grid_size)
        self.num_prefix_rows = num_prefix_rows
        self.interpolation = interpolation

    def build(self, tokens_shape, patches_shape=None):
        self.embedding = self.add_weight(
            name="embedding",
            shape=(self.num_prefix_rows + math.prod(self.grid_size), tokens_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def call(self, tokens, patches=None):
        grid = self.grid_size if patches is None else tuple(ops.shape(patches)[1:3])
        rows = self._rows(grid)  # (p + N, D)
        num_tokens = tokens.shape[1]
        if num_tokens is not None and rows.shape[0] is not None:
            self._check_count(num_tokens, rows.shape[0], grid, exactly=patches is None)
        if num_tokens is not None and num_tokens == rows.shape[0]:
            return tokens + rows
        num_patches = grid[0] * grid[1]
        front = self.num_prefix_rows
        between = tokens[:, front : ops.shape(tokens)[1] - num_patches]
        last = tokens[:, ops.shape(tokens)[1] - num_patches :]
        # LiteRT cannot add tensors without elements.
        prefix = [tokens[:, :front] + rows[:front]] if front else []
        return ops.concatenate([*prefix, between, last + rows[front:]], axis=1)

    def _rows(self, grid):
        rows = ops.convert_to_tensor(self.embedding)
        if _is_known(grid) and grid == self.grid_size:
            return rows
        prefix, table = rows[: self.num_prefix_rows], rows[self.num_prefix_rows :]
        rows_matrix, columns_matrix = resampling.grid_matrices(self.grid_size, grid, self.interpolation, ops)
        table = ops.reshape(ops.cast(table, "float32"), (*self.grid_size, -1))
        # One axis at a time: PyTorch would first multiply the two matrices, which gives a far larger one.
        table = ops.einsum("wj,hjd->hwd", columns_matrix, ops.einsum("hi,ijd->hjd", rows_matrix, table))
        table = ops.reshape(ops.cast(table, rows.dtype), (grid[0] * grid[1], rows.shape[-1]))
        return ops.concatenate([prefix, table], axis=0)

    def _check_count(self, num_tokens, num_rows, grid, exactly):
        if num_tokens < num_rows or (exactly and num_tokens > num_rows):
            raise ValueError(
                f"{num_tokens} tokens do not fit {self.num_prefix_rows} prefix rows and a grid of {grid[0]} x "
                f"{grid[1]} patches ({num_rows} rows). If the image's grid is different, or there are tokens without "
                f"a row, pass `patches`, the map of the patch tokens."
            )

    def compute_output_shape(self, tokens_shape, patches_shape=None):
        return tokens_shape

    def get_config(self):
        return {
            **super().get_config(),
            "grid_size": self.grid_size,
            "num_prefix_rows": self.num_prefix_rows,
            "interpolation": self.interpolation,
        }


def _is_known(grid):
    # In a TensorFlow graph of variable image size, the grid consists of tensors, which have no truth value.
    return all(isinstance(size, int) for size in grid)
