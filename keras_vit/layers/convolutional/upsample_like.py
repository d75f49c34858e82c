"""Enlarging maps to the size of others. B batch, h w map, H W larger map, C channels."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_vit")
class UpsampleLike(keras.layers.Layer):
    """Enlarges a map by an integer factor and crops it to the size of another.

    Convolutions with strides round sizes up, so an enlarged map may have more rows and columns than the original. The
    extra ones at the bottom and right are cropped. The others stay aligned with their pixels for any size. Resizing to
    the other map's size would shift them.

    Args:
        scale: The factor s, the same for both axes.
        interpolation: `"bilinear"`: linear between pixel centres, and constant beyond the outermost centres, as in
            PyTorch's `interpolate`. `"nearest"`: each pixel is repeated s x s times.

    Call arguments:
        maps: (B, h, w, C), channels last. Sizes may be unknown when the model is built.
        like: (B, H, W, any number of channels). Only its size is used. H is at most s h, W at most s w.

    Returns:
        (B, H, W, C)

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> maps, images = keras.ops.ones((2, 3, 4, 5)), keras.ops.ones((2, 11, 16, 3))
    >>> tuple(keras_vit.layers.UpsampleLike(scale=4)(maps, images).shape)
    (2, 11, 16, 5)
    """

    def __init__(self, scale: int, interpolation: str = "bilinear", **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.scale = check_positive_integer("scale", scale)
        self.interpolation = interpolation
        if interpolation not in ("bilinear", "nearest"):
            raise ValueError(f"interpolation must be 'bilinear' or 'nearest'. Received: {interpolation!r}")

    def call(self, maps, like):
        enlarge = _nearest if self.interpolation == "nearest" else _bilinear
        for axis in (1, 2):
            maps = enlarge(maps, axis, self.scale)
        height, width = ops.shape(like)[1:3]
        return maps[:, :height, :width]

    def compute_output_shape(self, maps_shape, like_shape):
        return (maps_shape[0], *like_shape[1:3], maps_shape[3])

    def get_config(self):
        return {**super().get_config(), "scale": self.scale, "interpolation": self.interpolation}


def _nearest(maps, axis, scale):
    return _interleave([maps] * scale, axis)


def _bilinear(maps, axis, scale):
    # Not ops.image.resize, which needs known sizes when the model is traced.
    first, last, head, tail = (maps[:, :, part] if axis == 2 else maps[:, part] for part in _PARTS)
    before, after = ops.concatenate([first, head], axis), ops.concatenate([tail, last], axis)
    phases = []
    for phase in range(scale):
        offset = (phase + 0.5) / scale - 0.5  # From the centre of the pixel, in pixels.
        phases.append((1 - abs(offset)) * maps + abs(offset) * (before if offset < 0 else after))
    return _interleave(phases, axis)


_PARTS = (slice(None, 1), slice(-1, None), slice(None, -1), slice(1, None))


def _interleave(phases, axis):
    """Interleaves the rows (or columns) of maps. Each map contains every s-th one of the result."""
    shape = list(ops.shape(phases[0]))
    shape[axis] = shape[axis] * len(phases)
    return ops.reshape(ops.stack(phases, axis + 1), shape)
