"""In training on TensorFlow, GELUs have hand-written gradients. They equal the gradients that TensorFlow derives.

Outside of training, a block uses TensorFlow's gradients. The tests compare `training=True` with `training=False`.
"""

import numpy as np
import pytest

from keras_vit.layers import MlpBlock
from tests.test_case import TENSORFLOW, assert_close, built, random_inputs, randomize

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow uses these gradients")
GELUS = ("gelu_tanh", "gelu_exact", "quick_gelu")


def _derivatives(name, training, dtype="float32"):
    """Values at 1,001 points from -8 to 8, their gradients, and the gradients of the squared gradients."""
    import tensorflow as tf

    layer = built(MlpBlock(1, name, dtype=dtype), (1,))  # The block is the identity before and after the activation.
    layer.set_weights([np.ones((1, 1)), np.zeros(1)] * 2)
    x = tf.cast(tf.linspace(-8.0, 8.0, 1001), "bfloat16")  # The same numbers in every dtype.
    x = tf.cast(x, dtype)[:, None]
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = layer(x, training=training)
        first = inner.gradient(y, x)
        squares = tf.square(first)
    return [value.numpy().astype("float64") for value in (y, first, outer.gradient(squares, x))]


@pytest.mark.parametrize("name", GELUS)
@pytest.mark.parametrize(("dtype", "orders"), [("float32", 3), pytest.param("bfloat16", 2, marks=pytest.mark.slow)])
def test_values_and_derivatives_are_as_exact_as_tensorflows(name, dtype, orders):
    found, usual = (_derivatives(name, training, dtype)[:orders] for training in (True, False))
    exact = _derivatives(name, False, "float64")
    for value, usual_value, right in zip(found, usual, exact, strict=False):
        error, usual_error = (np.abs(x - right) for x in (value, usual_value))
        assert 0 < error.mean() < 1.2 * usual_error.mean()
        assert dtype == "bfloat16" or error.max() < max(1e-5, usual_error.max())


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_are_those_of_tensorflow(jit_compile):
    import tensorflow as tf

    layers = [randomize(built(MlpBlock(20, name))) for name in (*GELUS, "swiglu")]
    tokens = tf.constant(2 * random_inputs((7, 12))[0])

    def gradients(training):
        found = []
        for layer in layers:
            with tf.GradientTape() as tape:
                tape.watch(tokens)
                # The rounding errors of the gradients of a sum, instead of a mean, would exceed the tolerance.
                loss = tf.reduce_mean(layer(tokens, training=training) ** 2)
            found += tape.gradient(loss, [tokens, *(weight.value for weight in layer.trainable_weights)])
        return found

    compiled = tf.function(lambda: gradients(training=True), jit_compile=True, autograph=False)
    found = compiled() if jit_compile else gradients(training=True)
    for gradient, expected in zip(found, gradients(training=False), strict=True):
        assert np.abs(expected).max() > 1e-2
        assert_close(gradient, expected)


@pytest.mark.parametrize("training", [None, False, True])
def test_only_training_takes_them(training):
    import tensorflow as tf

    layer = built(MlpBlock(20))
    function = tf.function(lambda tokens: layer(tokens, training=training), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec((2, 7, 12))).graph
    # (1 + tanh(u)) / 2 = sigmoid(2 u): the hand-written gradient uses one form, TensorFlow the other.
    kinds = {operation.type for operation in graph.get_operations()}
    assert ("Sigmoid" in kinds, "Tanh" in kinds) == ((True, False) if training else (False, True))
