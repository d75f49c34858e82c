"""Operations as textbooks have them, for files that other runtimes read. B batch, T tokens, D hidden."""

import contextlib
import contextvars

from keras import ops

_MULTIPLY = contextvars.ContextVar("multiply", default=None)


@contextlib.contextmanager
def textbook_operations(multiply):
    """Inside, layers compute in the operations that ONNX Runtime and OpenVINO look for.

    What these join to one kernel is not what TensorFlow joins: a norm as mean, difference, variance, root and quotient,
    and products of (B, T, D) with a matrix, not of rows. Results are the same, to rounding.

    Args:
        multiply: Function that multiplies (B, T, D) with (D, M). `keras.ops.matmul` makes rows of it on TensorFlow;
            `tf.matmul` does not.

    Example:

    >>> import keras, keras_vit
    >>> from keras_vit.layers.ops.textbook import textbook_operations
    >>> with textbook_operations(keras.ops.matmul):
    ...     tokens = keras_vit.layers.MlpBlock(mlp_dim=32)(keras.ops.ones((2, 7, 12)))
    >>> tuple(tokens.shape)
    (2, 7, 12)
    """
    token = _MULTIPLY.set(multiply)
    try:
        yield
    finally:
        _MULTIPLY.reset(token)


def textbook_multiply():
    """The function that `textbook_operations` was given; `None` outside of it."""
    return _MULTIPLY.get()


def standardize(values, epsilon):
    """Values (..., D), brought to mean 0 and variance 1 in operations that ONNX Runtime and OpenVINO join to a norm.

    Args:
        values: (..., D)
        epsilon: Added to the variance.

    Returns:
        Same shape as `values`.
    """
    # ONNX Runtime takes a square for a part of a norm only as a power, OpenVINO an axis only in a list.
    centered = values - ops.mean(values, axis=[-1], keepdims=True)
    variance = ops.mean(ops.power(centered, 2.0), axis=[-1], keepdims=True)
    return centered / ops.sqrt(variance + epsilon)
