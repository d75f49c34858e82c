"""Bilinear resizing of maps to any size. Shapes: B batch, h w map, H W resized map, C channels."""

import keras
from keras import ops


def resize_bilinear(maps, size, align_corners=False):
    """Resizes maps by bilinear interpolation, without antialiasing, as PyTorch's `interpolate`.

    Args:
        maps: (B, h, w, C), channels last.
        size: (H, W), integers or tensors.
        align_corners: Whether the centres of the corner pixels stay in place. If not, the borders of the corner pixels
            do.

    Returns:
        (B, H, W, C), of the same type as `maps`.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # This kernel takes half as much time as the operations below. It returns float32.
        resize = tf.raw_ops.ResizeBilinear
        resized = resize(images=maps, size=size, align_corners=align_corners, half_pixel_centers=not align_corners)
        return tf.cast(resized, maps.dtype)
    for axis, new_size in zip((1, 2), size, strict=True):
        first, last = 0.0, ops.cast(ops.shape(maps)[axis] - 1, "float32")
        steps = ops.arange(new_size, dtype="float32")
        if align_corners:
            positions = steps * (last / ops.maximum(ops.cast(new_size, "float32") - 1, 1))
        else:
            positions = ops.clip((steps + 0.5) * ((last + 1) / ops.cast(new_size, "float32")) - 0.5, first, last)
        before = ops.floor(positions)
        share = ops.cast(ops.reshape(positions - before, (-1, *[1] * (3 - axis))), maps.dtype)
        low, high = (
            ops.take(maps, ops.cast(ops.minimum(before + shift, last), "int32"), axis=axis) for shift in (0.0, 1.0)
        )
        maps = low + share * (high - low)
    return maps
