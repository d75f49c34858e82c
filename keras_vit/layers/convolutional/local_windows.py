"""The window around each pixel of a map. Shapes: B batch, H W map, C channels."""

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
