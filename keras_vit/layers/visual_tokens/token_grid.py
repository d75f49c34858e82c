"""Grids of visual tokens."""

import math

from keras import ops


def squarest_grid(num_tokens):
    """Returns the size (h, w) of the grid with `num_tokens` cells that is closest to a square."""
    height = next(size for size in range(math.isqrt(num_tokens), 0, -1) if num_tokens % size == 0)
    return height, num_tokens // height


def shrink(maps, grid_size):
    """Resizes maps (B, H, W, C) to (B, h, w, C) by bilinear interpolation between pixel centres."""
    return ops.image.resize(maps, grid_size, "bilinear", data_format="channels_last")
