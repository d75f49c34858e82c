"""Layer normalization that TensorFlow can compute in one kernel. Shapes: D channels."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_epsilon
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.exportable import exportable_multiply, standardize


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNormalization(BaseLayer):
    """Normalises each token to mean 0 and variance 1, then scales and shifts its channels (arXiv 1607.06450).

    `y = gamma (x - mean(x)) / sqrt(var(x) + epsilon) + beta` is computed over the last axis, in float32 or higher
    precision. The weights and results are the same as in `keras.layers.LayerNormalization`. If gamma and beta are
    constants, as in a SavedModel, the layer uses operations that TensorFlow on CPUs fuses into one kernel.

    Args:
        epsilon: Number that is added to the variance. In [1e-15, 1].

    Call arguments:
        inputs: (..., D)

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: If `epsilon` is out of range.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.LayerNormalization(epsilon=1e-6)(keras.ops.ones((2, 7, 12))).shape)
    (2, 7, 12)
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = check_epsilon("epsilon", epsilon)
        self.supports_masking = True
        self.autocast = False

    def build(self, input_shape):
        shape = (input_shape[-1],)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones", autocast=False)
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros", autocast=False)

    def call(self, inputs):
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        values, gamma, beta = (ops.cast(x, dtype) for x in (inputs, self.gamma, self.beta))
        if exportable_multiply() is not None:
            outputs = standardize(values, self.epsilon) * gamma + beta
        elif _is_constant(self.gamma) and _is_constant(self.beta):
            outputs = _normalize_fusibly(values, gamma, beta, self.epsilon)
        elif keras.backend.backend() == "tensorflow":
            outputs = _normalize_centered(values, gamma, beta, self.epsilon)
        else:
            outputs = ops.layer_normalization(values, gamma, beta, axis=-1, epsilon=self.epsilon)
        return ops.cast(outputs, self.compute_dtype)


def _is_constant(weight):
    """Whether a weight is a constant in a TensorFlow graph."""
    return getattr(getattr(weight.value, "op", None), "type", None) == "Const"


def _normalize_centered(values, gamma, beta, epsilon):
    """Normalises tokens in fewer passes over memory than Keras's layer normalization.

    The operations are written so that TensorFlow does not replace them by its kernel `_MklLayerNorm`. This kernel
    ignores epsilon.
    """
    centered = values - ops.mean(values, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    return centered * ops.rsqrt(variance + epsilon) * gamma + beta


def _normalize_fusibly(values, gamma, beta, epsilon):
    """Normalises tokens with operations that TensorFlow fuses into its kernel `_MklLayerNorm`.

    TensorFlow fuses the operations only in this order and with a positive axis. The kernel always uses an epsilon of
    1e-3 (TensorFlow 2.21). The values are therefore scaled by c with `c^2 = 1e-3 / epsilon`. This gives the correct
    result, because `sqrt(v + epsilon) = sqrt(c^2 v + 1e-3) / c`.
    """
    values = values * math.sqrt(_KERNEL_EPSILON / epsilon)
    mean, variance = ops.moments(values, axes=[len(values.shape) - 1], keepdims=True)
    scale = ops.rsqrt(variance + _KERNEL_EPSILON) * gamma
    return values * scale + (beta - scale * mean)


_KERNEL_EPSILON = 1e-3
