"""Resizes maps to the size of other maps. Shapes: B batch, h w map, H W other map, C channels."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.resizing import resize_bilinear


@keras.saving.register_keras_serializable(package="keras_vit")
class ResizeLike(BaseLayer):
    """Resizes a map to the size of another map by bilinear interpolation, as PyTorch's `interpolate`.

    The borders of the corner pixels stay in place (`align_corners=False`). Unlike in `UpsampleLike`, the ratio of the
    sizes can be any number.

    Args:
        scale: The map gets `scale` times the height and width of the other map.

    Call arguments:
        maps: (B, h, w, C), channels last. Sizes may be unknown when the model is built.
        like: (B, H, W, any number of channels). Only its size is used.

    Returns:
        (B, scale H, scale W, C)

    Example:

    >>> import keras, keras_vit
    >>> maps, images = keras.ops.ones((2, 3, 4, 5)), keras.ops.ones((2, 42, 56, 3))
    >>> tuple(keras_vit.layers.ResizeLike()(maps, images).shape)
    (2, 42, 56, 5)
    """

    def __init__(self, scale: int = 1, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.scale = check_positive_integer("scale", scale)

    def call(self, maps, like):
        return resize_bilinear(maps, [self.scale * side for side in ops.shape(like)[1:3]])

    def compute_output_shape(self, maps_shape, like_shape):
        return (maps_shape[0], *(side and self.scale * side for side in like_shape[1:3]), maps_shape[3])
