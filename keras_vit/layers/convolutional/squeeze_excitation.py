"""Attention factors for channels, computed from the whole map. Shapes: B batch, H W C map."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.parts import build_dense


@keras.saving.register_keras_serializable(package="keras_vit")
class SqueezeExcitation(BaseLayer):
    """Multiplies each channel by a factor in (0, 1) that is computed from the means of all channels.

    `s = sigmoid(W_2 relu(W_1 mean_HW(x)))` and `y = s x` ("Squeeze-and-Excitation Networks", arXiv 1709.01507,
    equations 2 to 4), without biases.

    Args:
        reduction: Factor r. The hidden layer has C / r channels, at least one.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        Same shape as `maps`.

    Raises:
        ValueError: If `reduction` is not a positive integer.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.SqueezeExcitation(reduction=2)(keras.ops.ones((2, 5, 8, 6))).shape)
    (2, 5, 8, 6)
    """

    def __init__(self, reduction: int = 16, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.reduction = check_positive_integer("reduction", reduction)

    def build(self, input_shape):
        channels = input_shape[-1]
        hidden = max(1, channels // self.reduction)
        self.dense_1 = build_dense(self, "dense_1", channels, hidden)
        self.dense_2 = build_dense(self, "dense_2", hidden, channels)

    def call(self, maps):
        means = ops.mean(maps, axis=(1, 2), keepdims=True)
        return maps * ops.sigmoid(self.dense_2(ops.relu(self.dense_1(means))))

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        return 2 * input_shape[-1] * self.dense_1.units
