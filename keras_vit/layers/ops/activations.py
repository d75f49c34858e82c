"""Activations of the MLP. Inputs x are (..., M)."""

import math

import keras
from keras import ops


def gelu_tanh(x):
    """`x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))` (arXiv 1606.08415)."""
    return ops.gelu(x, approximate=True)


def gelu_exact(x):
    """`x/2 (1 + erf(x / sqrt(2)))` (arXiv 1606.08415)."""
    # ops.gelu(approximate=False) uses erfc, for which ONNX has no operator.
    return 0.5 * x * (1.0 + ops.erf(x * (1.0 / math.sqrt(2.0))))


def quick_gelu(x):
    """`x sigmoid(1.702 x)` (arXiv 1606.08415; CLIP)."""
    return x * ops.sigmoid(1.702 * x)


def swiglu(x):
    """`SiLU(gate) value` (arXiv 2002.05202). The first half of x is the gate, the second half is the value."""
    gate, value = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * value


def relu(x):
    """`max(x, 0)`"""
    return ops.relu(x)


ACTIVATIONS = {
    "gelu_tanh": gelu_tanh,
    "gelu_exact": gelu_exact,
    "quick_gelu": quick_gelu,
    "swiglu": swiglu,
    "relu": relu,
}


def activate(name, x, training=None):
    """Applies the activation `name` of `ACTIVATIONS`. For training on TensorFlow, a GELU has a custom gradient.

    TensorFlow on CPUs can fuse a dense layer and the GELU after it into one kernel. It does so only if the names of the
    GELU's operations come after the dense layer's name in alphabetical order. The name scope ensures this order.
    """
    with keras.name_scope("nonlinearity"):
        has_own_gradient = training and keras.backend.backend() == "tensorflow"
        return (_WITH_GRADIENTS if has_own_gradient else ACTIVATIONS)[name](x)


def _with_gradient(gate, slope):
    """Returns the function `x gate(x)` with the derivative `gate(x) + x slope(x, gate(x))`."""

    @ops.custom_gradient
    def activation(x):
        gates = gate(x)
        return x * gates, lambda upstream: upstream * (gates + x * slope(x, gates))

    return activation


_LINEAR, _CUBIC = 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715
# TensorFlow's gradients store several arrays (B T, M). These functions store only x and the gate.
# The gate of "gelu_tanh" is (1 + tanh(u)) / 2 = sigmoid(2 u).
_WITH_GRADIENTS = {
    **ACTIVATIONS,
    "gelu_tanh": _with_gradient(
        lambda x: ops.sigmoid(x * (_CUBIC * ops.square(x) + _LINEAR)),
        lambda x, gate: gate * (1 - gate) * (3 * _CUBIC * ops.square(x) + _LINEAR),
    ),
    "gelu_exact": _with_gradient(
        lambda x: 0.5 * ops.erf(x * math.sqrt(0.5)) + 0.5,
        lambda x, gate: ops.exp(-0.5 * ops.square(x)) * (1 / math.sqrt(2 * math.pi)),
    ),
    "quick_gelu": _with_gradient(lambda x: ops.sigmoid(1.702 * x), lambda x, gate: 1.702 * gate * (1 - gate)),
}
