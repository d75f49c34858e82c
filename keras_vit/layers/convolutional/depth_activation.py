"""Converts the outputs of a last layer to depth. Shapes: B batch, H W map, K bins."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_choice
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class DepthActivation(BaseLayer):
    """Converts the outputs x of a last layer to depth, in float32.

    With one output, the depth is `f(x) + offset`, where `f` is the activation, at most `max_depth`. With K outputs, it
    is the mean of K depths that are evenly spaced from `min_depth` to `max_depth`, with the weights `f(x) + offset`
    (AdaBins, arXiv 2011.14141; DINOv2, arXiv 2304.07193).

    Args:
        activation: `"relu"`, `"exp"`, `"softplus"`, or `"sigmoid"` times `max_depth`.
        offset: Number that is added to the activation.
        min_depth: Smallest depth of the bins.
        max_depth: Largest depth. `None`: unlimited.

    Call arguments:
        outputs: (B, H, W, 1) or (B, H, W, K).
        sky: (B, H, W, 1), at least 0.3 for pixels of the sky. They get the 0.99-quantile of the depths of all other
            pixels of the image, if there are more than 10 pixels of each kind (Depth Anything 3, arXiv 2511.10647; the
            owners take the quantile of all images of a batch). `None`: there is no sky.

    Returns:
        float32 (B, H, W, 1)

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.DepthActivation("relu", offset=0.1, min_depth=1.0, max_depth=5.0)
    >>> round(float(layer(keras.ops.ones((1, 1, 1, 3)))[0, 0, 0, 0]), 3)
    3.0
    """

    def __init__(
        self,
        activation: str = "softplus",
        offset: float = 0.0,
        min_depth: float | None = None,
        max_depth: float | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False
        self.activation_name = check_choice("activation", activation, ("relu", "exp", "softplus", "sigmoid"))
        self.offset, self.min_depth, self.max_depth = offset, min_depth, max_depth

    ATTRIBUTES: typing.ClassVar = {"activation": "activation_name"}

    def call(self, outputs, sky=None):
        values = getattr(ops, self.activation_name)(ops.cast(outputs, "float32")) + self.offset
        if outputs.shape[-1] > 1:
            bins = ops.linspace(self.min_depth, self.max_depth, outputs.shape[-1], dtype="float32")
            depth = ops.sum(values * bins, axis=-1, keepdims=True) / ops.sum(values, axis=-1, keepdims=True)
        elif self.activation_name == "sigmoid":
            depth = values * self.max_depth
        else:
            depth = values if self.max_depth is None else ops.minimum(values, self.max_depth)
        return depth if sky is None else _with_sky(depth, ops.cast(sky, "float32") >= 0.3)

    def compute_output_shape(self, outputs_shape, sky_shape=None):
        return (*outputs_shape[:3], 1)


def _with_sky(depth, is_sky):
    """Replaces the depth of the sky by the 0.99-quantile of the depths of the ground."""
    shape = ops.shape(depth)
    depth, is_sky = (ops.reshape(each, (shape[0], -1)) for each in (depth, is_sky))
    num_pixels = ops.cast(ops.shape(depth)[1], "float32")
    num_ground = num_pixels - ops.sum(ops.cast(is_sky, "float32"), axis=1, keepdims=True)  # (B, 1)
    ordered = ops.sort(ops.where(is_sky, float("inf"), depth), axis=1)
    position = 0.99 * ops.maximum(num_ground - 1, 0)
    low, high = (
        ops.take_along_axis(ordered, ops.cast(round_(position), "int32"), axis=1) for round_ in (ops.floor, ops.ceil)
    )
    far = low + (position - ops.floor(position)) * (high - low)
    is_filled = ops.logical_and(num_ground > 10, num_pixels - num_ground > 10)
    return ops.reshape(ops.where(ops.logical_and(is_sky, is_filled), far, depth), shape)
