"""The windows around each place of a map. B batch, H W map, C channels."""

from keras import ops

from keras_vit.checks import check_positive_integer


def local_windows(maps, size, strides=1, padding="constant"):
    """The square windows around the places of a map.

    Slices along one axis, and then along the other: on all backends less work than what they have for patches, which
    are convolutions with 0 and 1 on JAX and PyTorch, and fewer operations than one slice for each place of a window.

    Args:
        maps: (B, H, W, C)
        size: Side of a window in pixels, odd.
        strides: Step between windows in pixels, the same for both axes.
        padding: What stands around the map: `"constant"`: zeros, or `"reflect"`: what lies as far on the other side of
            the border.

    Returns:
        (B, h, w, N, C), where h and w are H and W divided by `strides` and rounded up; windows row by row.
    """
    if size > 1:  # PyTorch does not reflect nothing.
        margin = (size // 2,) * 2
        maps = ops.pad(maps, ((0, 0), margin, margin, (0, 0)), mode=padding)
    slices = [slice(start, start - size + 1 or None, strides) for start in range(size)]
    columns = ops.stack([maps[:, :, part] for part in slices], axis=3)
    return ops.concatenate([columns[:, part] for part in slices], axis=3)


def inside_map(maps, size, strides=1):
    """(1, h, w, N, 1): whether a place of a window lies in the map, and not around it."""
    return local_windows(ops.ones_like(maps[:1, :, :, :1]), size, strides) > 0


def check_window_size(size):
    """`size`, which must be an odd number of pixels."""
    if check_positive_integer("window_size", size) % 2 == 0:
        raise ValueError(f"window_size must be odd, so that a window has a centre. Received: {size}")
    return size
