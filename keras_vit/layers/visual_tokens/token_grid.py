"""Visual tokens that stand in a grid."""

import math

from keras import ops


def squarest_grid(num_tokens):
    """(h, w), as square as may be, of a grid with so many places."""
    height = next(size for size in range(math.isqrt(num_tokens), 0, -1) if num_tokens % size == 0)
    return height, num_tokens // height


def shrink(maps, grid_size):
    """Maps (B, H, W, C) as (B, h, w, C), interpolated bilinearly between the centres of pixels."""
    return ops.image.resize(maps, grid_size, "bilinear", data_format="channels_last")
