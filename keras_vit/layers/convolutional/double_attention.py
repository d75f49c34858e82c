"""Gathers features from the whole map and distributes them to its pixels. Shapes: B batch, H W C map, P = HW pixels."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.parts import batch_norm, build_dense
from keras_vit.layers.ops.maps import as_pixels


@keras.saving.register_keras_serializable(package="keras_vit")
class DoubleAttention(BaseLayer):
    """The double attention block of A2-Nets: one attention gathers features, a second one distributes them.

    `G = A softmax_P(B)^T`, `Z = G softmax_n(V)` and `X + BN(W Z)` ("A2-Nets: Double Attention Networks", arXiv
    1810.11579, equations 3 to 6). `A` (m, P), `B` (n, P) and `V` (n, P) are linear projections of each pixel, without
    biases. Both softmaxes are computed in float32 under any precision policy. The gamma of the batch norm starts at
    zero, so the output of the block is `X` before training.

    Args:
        num_features: Number m of channels of a gathered feature.
        num_attentions: Number n of attention maps. Each attention map gathers one feature.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.
        training: Whether the batch norm uses the batch's statistics and updates its moving averages.

    Returns:
        Same shape as `maps`.

    Raises:
        ValueError: If an argument is not a positive integer.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.DoubleAttention(num_features=3, num_attentions=4)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 6))).shape)
    (2, 5, 8, 6)
    """

    def __init__(self, num_features: int, num_attentions: int, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.num_features = check_positive_integer("num_features", num_features)
        self.num_attentions = check_positive_integer("num_attentions", num_attentions)
        self.norm = batch_norm(gamma_initializer="zeros", **self.part_arguments("norm"))

    def build(self, input_shape):
        channels = input_shape[-1]
        self.feature = build_dense(self, "feature", channels, self.num_features)
        self.gathering = build_dense(self, "gathering", channels, self.num_attentions)
        self.distribution = build_dense(self, "distribution", channels, self.num_attentions)
        self.extension = build_dense(self, "extension", self.num_features, channels)
        self.norm.build(input_shape)

    def call(self, maps, training=None):
        pixels = as_pixels(maps)
        gathering = self._softmax(self.gathering(pixels), axis=1)  # (B, P, n)
        distribution = self._softmax(self.distribution(pixels), axis=2)
        features = ops.matmul(ops.swapaxes(gathering, 1, 2), self.feature(pixels))  # (B, n, m)
        branch = ops.reshape(self.extension(ops.matmul(distribution, features)), ops.shape(maps))
        return maps + self.norm(branch, training=training)

    def _softmax(self, logits, axis):
        return ops.cast(ops.softmax(ops.cast(logits, "float32"), axis=axis), self.compute_dtype)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        features, attentions = self.num_features, self.num_attentions
        pixel_macs = 2 * input_shape[-1] * (features + attentions) + 2 * features * attentions
        return math.prod(input_shape[1:-1]) * pixel_macs
