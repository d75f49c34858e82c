"""Attention factors for channels, then for pixels. Shapes: B batch, H W C map."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.padded_conv2d import PaddedConv2D
from keras_vit.layers.convolutional.parts import batch_norm, build_dense


@keras.saving.register_keras_serializable(package="keras_vit")
class ConvolutionalBlockAttention(BaseLayer):
    """CBAM: multiplies each channel by a factor, then each pixel by a factor.

    `y = x sigmoid(MLP(mean_HW(x)) + MLP(max_HW(x)))` with `MLP(v) = W_2 relu(W_1 v)`, and then
    `z = y sigmoid(BN(conv([mean_C(y), max_C(y)])))` ("CBAM: Convolutional Block Attention Module", arXiv 1807.06521,
    equations 2 and 3). The paper's equations do not contain the batch norm, but the authors' code does
    (Jongchan/attention-module). The MLP and the convolution have no biases.

    Args:
        reduction: Factor r. The hidden layer of the MLP has C / r channels, at least one.
        kernel_size: Side of the convolution's kernel in pixels, odd.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.
        training: Whether the batch norm uses the batch's statistics and updates its moving averages.

    Returns:
        Same shape as `maps`.

    Raises:
        ValueError: If an argument is not a positive integer, or if `kernel_size` is even.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.ConvolutionalBlockAttention(reduction=2, kernel_size=3)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 6))).shape)
    (2, 5, 8, 6)
    """

    def __init__(self, reduction: int = 16, kernel_size: int = 7, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.reduction = check_positive_integer("reduction", reduction)
        self.kernel_size = kernel_size
        self.conv = PaddedConv2D(1, kernel_size, **self.part_arguments("conv"))
        self.norm = batch_norm(**self.part_arguments("norm"))

    def build(self, input_shape):
        channels = input_shape[-1]
        hidden = max(1, channels // self.reduction)
        self.dense_1 = build_dense(self, "dense_1", channels, hidden)
        self.dense_2 = build_dense(self, "dense_2", hidden, channels)
        self.conv.build((*input_shape[:-1], 2))
        self.norm.build((*input_shape[:-1], 1))

    def call(self, maps, training=None):
        pixels = ops.reshape(maps, (ops.shape(maps)[0], -1, 1, maps.shape[-1]))
        statistics = (ops.mean(pixels, axis=1, keepdims=True), _largest(pixels, axis=1))
        maps = maps * ops.sigmoid(sum(self.dense_2(ops.relu(self.dense_1(values))) for values in statistics))
        statistics = (ops.mean(maps, axis=-1, keepdims=True), _largest(maps, axis=-1))
        logits = self.norm(self.conv(ops.concatenate(statistics, axis=-1)), training=training)
        return maps * ops.sigmoid(logits)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        return 2 * 2 * input_shape[-1] * self.dense_1.units + self.conv.macs((*input_shape[:-1], 2))


def _largest(maps, axis):
    """Returns the maximum along an axis. The axis is kept, with size 1."""
    # The gradient of ops.max divides by the number of values that equal the maximum. This number can be zero, because
    # XLA may recompute the maps with a different rounding.
    return ops.take_along_axis(maps, ops.argmax(maps, axis=axis, keepdims=True), axis=axis)
