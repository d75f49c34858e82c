"""Group normalization that is fast on CPUs. Shapes: B batch, H W C map, G groups."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_epsilon, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.exportable import exportable_multiply, standardize


@keras.saving.register_keras_serializable(package="keras_vit")
class GroupNormalization(BaseLayer):
    """Normalises groups of channels to mean 0 and variance 1, then scales and shifts each channel (arXiv 1803.08494).

    `y = gamma (x - mean(x)) / sqrt(var(x) + epsilon) + beta` is computed in float32 or higher precision. The mean and
    variance are computed over all pixels and the C / G channels of a group. The weights and results are the same as in
    `keras.layers.GroupNormalization`, which computes the mean and variance of each group directly. This layer is
    faster, because it first computes the mean and variance of each channel. The variance of a group is the mean of its
    channels' variances plus the variance of its channels' means.

    Args:
        groups: Number G of groups, a divisor of C.
        epsilon: Number in [1e-15, 1] that is added to the variance.
        gamma_initializer: Initializer of gamma. Beta is initialised with zeros.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        Same shape as `maps`.

    Raises:
        ValueError: If `groups` is not a positive integer, if C is not a multiple of `groups`, or if `epsilon` is
            out of range.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.GroupNormalization(groups=4)(keras.ops.ones((2, 5, 8, 12))).shape)
    (2, 5, 8, 12)
    """

    def __init__(
        self,
        groups: int = 32,
        epsilon: float = 1e-5,
        gamma_initializer: str | keras.initializers.Initializer = "ones",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.groups = check_positive_integer("groups", groups)
        self.epsilon = check_epsilon("epsilon", epsilon)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)
        self.autocast = False

    def build(self, input_shape):
        channels = input_shape[-1]
        if channels % self.groups:
            raise ValueError(f"The channels must be a multiple of groups={self.groups}. Received: {channels} channels")
        shape = (channels,)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer=self.gamma_initializer, autocast=False)
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros", autocast=False)

    def call(self, maps):
        dtype = keras.backend.result_type(maps.dtype, "float32")
        values, gamma, beta = (ops.cast(x, dtype) for x in (maps, self.gamma, self.beta))
        normalize = _normalize if exportable_multiply() is None else _normalize_exportably
        return ops.cast(normalize(values, gamma, beta, self.groups, self.epsilon), self.compute_dtype)


def _normalize(maps, gamma, beta, groups, epsilon):
    """Normalises maps in as few passes over memory as possible."""
    means = _mean_of_pixels(maps)
    variances = _mean_of_pixels(ops.square(maps - means))

    by_group = (-1, groups, maps.shape[-1] // groups)
    means, variances = ops.reshape(means, by_group), ops.reshape(variances, by_group)
    mean = ops.mean(means, axis=-1, keepdims=True)
    variance = ops.mean(variances + ops.square(means - mean), axis=-1, keepdims=True)
    scale = ops.rsqrt(variance + epsilon) * ops.reshape(gamma, by_group[1:])
    offset = ops.reshape(beta, by_group[1:]) - mean * scale

    by_channel = (-1, 1, 1, maps.shape[-1])
    return maps * ops.reshape(scale, by_channel) + ops.reshape(offset, by_channel)


def _mean_of_pixels(maps):
    """Averages (B, H, W, C) to (B, 1, 1, C)."""
    # On CPUs, TensorFlow needs twice as long for one mean over both axes as for two means over one axis each.
    return ops.mean(ops.mean(maps, axis=2, keepdims=True), axis=1, keepdims=True)


def _normalize_exportably(maps, gamma, beta, groups, epsilon):
    """Normalises maps with operations that OpenVINO fuses into one kernel for the norm and one for gamma and beta."""
    maps = ops.transpose(maps, (0, 3, 1, 2))  # Convolutions in ONNX Runtime and OpenVINO use this layout.
    _, channels, height, width = ops.shape(maps)
    by_group = ops.reshape(maps, (-1, groups, channels // groups * height * width))
    maps = ops.reshape(standardize(by_group, epsilon), (-1, channels, height, width))
    return ops.transpose(maps, (0, 2, 3, 1)) * gamma + beta
