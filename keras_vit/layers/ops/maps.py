"""Pixels and windows of maps. Shapes: B batch, H W map, h w smaller map, C channels."""

import math

import numpy as np
from keras import ops

from keras_vit.checks import check_positive_integer


def local_windows(maps, size, strides=1, padding="constant"):
    """Returns the square windows around the pixels of a map.

    The map is sliced along its columns, then along its rows. This needs `2 size` slices. Slicing each pixel of a window
    separately would need `size^2` slices. The patch extraction of JAX and PyTorch needs more computation than slicing,
    because it is a convolution with kernels of zeros and ones.

    Args:
        maps: (B, H, W, C)
        size: Side of a window in pixels, odd.
        strides: Step between windows in pixels, the same for both axes.
        padding: Padding of the map. `"constant"`: zeros. `"reflect"`: the map is reflected at its border.

    Returns:
        (B, h, w, N, C), where h and w are H and W divided by `strides` and rounded up. The N pixels of a window are
        ordered row by row.
    """
    if size > 1:  # PyTorch does not accept reflection padding of width 0.
        margin = (size // 2,) * 2
        maps = ops.pad(maps, ((0, 0), margin, margin, (0, 0)), mode=padding)
    slices = [slice(start, start - size + 1 or None, strides) for start in range(size)]
    columns = ops.stack([maps[:, :, part] for part in slices], axis=3)
    return ops.concatenate([columns[:, part] for part in slices], axis=3)


def is_inside_map(maps, size, strides=1):
    """Returns whether each pixel of each window is inside the map, as booleans (1, h, w, N, 1)."""
    return local_windows(ops.ones_like(maps[:1, :, :, :1]), size, strides) > 0


def check_window_size(size):
    """Returns `size`. Raises ValueError unless `size` is an odd positive integer."""
    if check_positive_integer("window_size", size) % 2 == 0:
        raise ValueError(f"window_size must be odd, so that windows have a centre. Received: {size}")
    return size


def strided(maps, strides):
    """Returns every `strides`-th row and column of maps (B, H, W, C).

    A 1 x 1 convolution with strides equals a matrix product of these pixels and the kernel. Layers use the product,
    because TensorFlow 2.21 on CPUs writes out of bounds in the gradient of the convolution.
    """
    return maps if strides == 1 else maps[:, ::strides, ::strides]


def strided_shape(input_shape, strides, filters):
    """Returns the output shape of a layer with `strides` and `filters`, for maps of shape (B, H, W, C)."""
    sizes = (size and -(-size // strides) for size in input_shape[1:3])
    return (input_shape[0], *sizes, filters)


def shrink(maps, grid_size):
    """Resizes maps (B, H, W, C) to (B, h, w, C) by bilinear interpolation between pixel centres."""
    return ops.image.resize(maps, grid_size, "bilinear", data_format="channels_last")


def relative_rows(table, dtype):
    """Returns rows (n, n, D) of a table (2 n - 1, D). Entry (o, p) is the table's row for the distance p - o."""
    length = (table.shape[0] + 1) // 2
    positions = np.arange(length)
    return ops.cast(ops.take(table, positions[None, :] - positions[:, None] + length - 1, axis=0), dtype)


def squarest_grid(num_cells):
    """Returns the size (h, w) of the grid with `num_cells` cells that is closest to a square."""
    height = next(size for size in range(math.isqrt(num_cells), 0, -1) if num_cells % size == 0)
    return height, num_cells // height


def as_pixels(maps):
    """Reshapes (B, H, W, C) to (B, H W, C)."""
    return ops.reshape(maps, (ops.shape(maps)[0], -1, maps.shape[-1]))
