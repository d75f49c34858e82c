"""Enlarges maps to the size of other maps. Shapes: B batch, h w map, H W larger map, C channels."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_choice, check_positive_integer
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class UpsampleLike(BaseLayer):
    """Enlarges a map by an integer factor and crops it to the size of another map.

    A convolution with a stride rounds the size of its output up. If a map was made smaller by such convolutions and is
    then enlarged, it may therefore have more rows and columns than the other map. The extra rows and columns at the
    bottom and right are cropped. The remaining pixels stay aligned with the pixels of the other map. Resizing the map
    to the other map's size would shift its pixels.

    Args:
        scale: Factor s by which the map is enlarged, the same for both axes.
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
        self.interpolation = check_choice("interpolation", interpolation, ("bilinear", "nearest"))

    def call(self, maps, like):
        for axis in (1, 2):
            is_nearest = self.interpolation == "nearest"
            phases = [maps] * self.scale if is_nearest else _bilinear_phases(maps, axis, self.scale)
            shape = list(ops.shape(maps))
            shape[axis] = shape[axis] * self.scale
            maps = ops.reshape(ops.stack(phases, axis + 1), shape)  # The phases are interleaved.
        height, width = ops.shape(like)[1:3]
        return maps[:, :height, :width]

    def compute_output_shape(self, maps_shape, like_shape):
        return (maps_shape[0], *like_shape[1:3], maps_shape[3])


def _bilinear_phases(maps, axis, scale):
    """Returns `scale` maps. Each contains every `scale`-th row (or column) of the enlarged map."""
    # ops.image.resize is not used, because it needs known sizes when the model is traced.
    first, last, head, tail = (maps[:, :, part] if axis == 2 else maps[:, part] for part in _PARTS)
    before, after = ops.concatenate([first, head], axis), ops.concatenate([tail, last], axis)
    phases = []
    for phase in range(scale):
        offset = (phase + 0.5) / scale - 0.5  # Distance to the centre of the map's pixel, in pixels of the map.
        phases.append((1 - abs(offset)) * maps + abs(offset) * (before if offset < 0 else after))
    return phases


_PARTS = (slice(None, 1), slice(-1, None), slice(None, -1), slice(1, None))
