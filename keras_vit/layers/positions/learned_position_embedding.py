"""Learned position embedding. Shapes: B batch, h w grid, N = h w patches, T tokens, D hidden, p prefix rows."""

import math
import typing

import keras
from keras import ops

from keras_vit import resampling
from keras_vit.checks import check_count, check_grid_size
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class LearnedPositionEmbedding(BaseLayer):
    """Adds a learned position embedding to each token.

    `z_0 = [z_class; z_1; ...; z_N] + E_pos` (ViT, arXiv 2010.11929, eq. 1). The table E_pos has `num_prefix_rows` rows
    for the prefix tokens, followed by one row for each patch of the grid, in row-major order. The table is initialised
    from N(0, 0.02). Tokens without a row are returned unchanged. For example, this applies to the prefix tokens if
    `num_prefix_rows` is 0.

    If the image's grid differs from `grid_size`, the rows of the patches are interpolated in float32. The authors also
    interpolate rows to fine-tune at a higher resolution (ViT, section 3.2). Their code uses
    `scipy.ndimage.zoom(order=1)`, which equals the method `"align_corners"`.

    Args:
        grid_size: Size of the table, (rows, columns) of patches.
        num_prefix_rows: Number of rows for tokens before the patch tokens.
        interpolation: Method of interpolation, one of `keras_vit.resampling.METHODS`. For published weights, use the
            method of the project that published them.

    Call arguments:
        tokens: (B, T, D), with the patch tokens last.
        patches: (B, h, w, D), the map of patch tokens. Only its size is used. Required if the image's grid differs from
            `grid_size`, or if there are tokens without a row.
        grids: Integers (B, 2), the rows and columns of the grid of each image, for images of different sizes
            (`keras_vit.naflex_model`). The first patch tokens of an image are those of its grid, row by row. The others
            are padding.

    Returns:
        (B, T, D)

    Raises:
        ValueError: If an argument is invalid, if there are fewer tokens than rows, or if there are more tokens than
            rows and `patches` is missing.

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
        self.grid_size = check_grid_size("grid_size", grid_size)
        self.num_prefix_rows = check_count("num_prefix_rows", num_prefix_rows)
        self.interpolation = interpolation

    def build(self, tokens_shape, patches_shape=None, grids_shape=None):
        num_rows = self.num_prefix_rows + math.prod(self.grid_size)
        self.embedding = self._add_table("embedding", num_rows, tokens_shape[-1])

    def _add_table(self, name, num_rows, width):
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        return self.add_weight(name=name, shape=(num_rows, width), initializer=initializer)

    def call(self, tokens, patches=None, grids=None):
        if grids is not None:
            return self._add_to_each(tokens, patches, grids)
        grid = self.grid_size if patches is None else tuple(ops.shape(patches)[1:3])
        rows = self._rows(grid)  # (p + N, D)
        num_tokens = tokens.shape[1]
        num_rows = rows.shape[0]
        is_known = None not in (num_tokens, num_rows)
        if is_known and (num_tokens < num_rows or (patches is None and num_tokens > num_rows)):
            raise ValueError(
                f"{num_tokens} tokens do not fit {self.num_prefix_rows} prefix rows and a grid of {grid[0]} x "
                f"{grid[1]} patches ({num_rows} rows). If the image's grid is different, or there are tokens without "
                f"a row, pass `patches`, the map of the patch tokens."
            )
        if is_known and num_tokens == num_rows:
            return tokens + rows
        num_prefix, first_patch = self.num_prefix_rows, ops.shape(tokens)[1] - grid[0] * grid[1]
        # LiteRT cannot add tensors without elements.
        prefix = [tokens[:, :num_prefix] + rows[:num_prefix]] if num_prefix else []
        unchanged, patch_tokens = tokens[:, num_prefix:first_patch], tokens[:, first_patch:]
        return ops.concatenate([*prefix, unchanged, patch_tokens + rows[num_prefix:]], axis=1)

    def _add_to_each(self, tokens, patches, grids):
        """Adds other rows to the tokens of each image."""
        num_patches, num_prefix = math.prod(patches.shape[1:3]), self.num_prefix_rows
        heights, widths = (ops.cast(sides, "float32")[:, None] for sides in ops.unstack(grids, axis=1))
        index = ops.arange(num_patches, dtype="float32")
        index = ops.where(index < heights * widths, index, 0.0)  # Padding gets the row of the first patch.
        positions = ops.floor(index / widths), index % widths  # (B, N)
        of_rows, of_columns = resampling.grid_weights(
            positions, self.grid_size, (heights, widths), self.interpolation, ops
        )
        pairs = ops.reshape(of_rows[..., None] * of_columns[..., None, :], (-1, num_patches, math.prod(self.grid_size)))
        rows = ops.convert_to_tensor(self.embedding)
        table = ops.cast(ops.matmul(pairs, ops.cast(rows[num_prefix:], "float32")), tokens.dtype)  # (B, N, D)
        prefix = ops.cast(rows[:num_prefix], tokens.dtype)
        unchanged, patch_tokens = tokens[:, num_prefix:-num_patches], tokens[:, -num_patches:]
        return ops.concatenate([tokens[:, :num_prefix] + prefix, unchanged, patch_tokens + table], axis=1)

    def _rows(self, grid):
        rows = ops.convert_to_tensor(self.embedding)
        # In a TensorFlow graph of variable image size, the sizes are tensors, which `if` does not accept.
        if all(isinstance(size, int) for size in grid) and grid == self.grid_size:
            return rows
        prefix, table = rows[: self.num_prefix_rows], rows[self.num_prefix_rows :]
        rows_matrix, columns_matrix = resampling.grid_matrices(self.grid_size, grid, self.interpolation, ops)
        table = ops.reshape(ops.cast(table, "float32"), (*self.grid_size, -1))
        # Each axis has its own einsum. In one einsum, PyTorch would first compute a huge product of the matrices.
        table = ops.einsum("wj,hjd->hwd", columns_matrix, ops.einsum("hi,ijd->hjd", rows_matrix, table))
        table = ops.reshape(ops.cast(table, rows.dtype), (grid[0] * grid[1], rows.shape[-1]))
        return ops.concatenate([prefix, table], axis=0)
