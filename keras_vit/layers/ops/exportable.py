"""Operations that exporters and other runtimes recognise. Shapes: B batch, T tokens, D hidden."""

import contextlib
import contextvars

from keras import ops

_MULTIPLY = contextvars.ContextVar("multiply", default=None)


@contextlib.contextmanager
def exportable_operations(multiply):
    """Inside this context, layers use operations that ONNX Runtime and OpenVINO can fuse.

    These runtimes fuse a norm only if it is computed as mean, difference, variance, root and quotient. They fuse a
    matrix product if a factor has the shape (B, T, D), but not if this factor was reshaped to (B T, D). The results
    change only by rounding.

    Args:
        multiply: Function that multiplies (B, ..., D) by (D, M). On TensorFlow, use `tf.matmul`, because
            `keras.ops.matmul` reshapes (B, T, D) to rows.

    Example:

    >>> import keras, keras_vit
    >>> from keras_vit.layers.ops.exportable import exportable_operations
    >>> with exportable_operations(keras.ops.matmul):
    ...     tokens = keras_vit.layers.MlpBlock(mlp_dim=32)(keras.ops.ones((2, 7, 12)))
    >>> tuple(tokens.shape)
    (2, 7, 12)
    """
    token = _MULTIPLY.set(multiply)
    try:
        yield
    finally:
        _MULTIPLY.reset(token)


def exportable_multiply():
    """Returns the argument `multiply` of the active `exportable_operations`, or `None` if none is active."""
    return _MULTIPLY.get()


def standardize(values, epsilon):
    """Normalises to mean 0 and variance 1 with operations that ONNX Runtime and OpenVINO fuse into a norm.

    Args:
        values: (..., D)
        epsilon: Number that is added to the variance.

    Returns:
        Same shape as `values`.
    """
    # ONNX Runtime fuses a norm only if squares are computed as powers. OpenVINO fuses a norm only if the axis of each
    # mean is given as a list.
    centered = values - ops.mean(values, axis=[-1], keepdims=True)
    variance = ops.mean(ops.power(centered, 2.0), axis=[-1], keepdims=True)
    return centered / ops.sqrt(variance + epsilon)
