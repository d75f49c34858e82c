"""The gradients of GELUs that are written by hand, for training on TensorFlow, are those that it finds by itself."""

import keras
import numpy as np
import pytest

from keras_vit.layers import MlpBlock, mlp_block
from tests.models.tiny import SHAPE, tiny_model
from tests.test_case import TENSORFLOW, assert_close, random_inputs, randomize

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="TensorFlow alone takes them")
GELUS = ("gelu_tanh", "gelu_exact", "quick_gelu")


def _derivatives(function, dtype="float32"):
    """Values from -8 to 8, their gradients, and gradients of those gradients' squares."""
    import tensorflow as tf

    x = tf.cast(tf.linspace(-8.0, 8.0, 1001), "bfloat16")  # The same numbers in every dtype.
    x = tf.cast(x, dtype)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        first = inner.gradient(y, x)
        squares = tf.square(first)
    return y, first, outer.gradient(squares, x)


@pytest.mark.parametrize("name", GELUS)
@pytest.mark.parametrize(("dtype", "orders"), [("float32", 3), ("bfloat16", 2)])
def test_values_and_derivatives_are_as_exact_as_tensorflows(name, dtype, orders):
    kinds = mlp_block._WITH_GRADIENTS, mlp_block._ACTIVATIONS
    found, usual = ([x.numpy().astype("float64") for x in _derivatives(kind[name], dtype)[:orders]] for kind in kinds)
    exact = [x.numpy() for x in _derivatives(mlp_block._ACTIVATIONS[name], "float64")]
    for value, usual_value, right in zip(found, usual, exact, strict=False):
        error, usual_error = (np.abs(x - right) for x in (value, usual_value))
        assert 0 < error.mean() < 1.2 * usual_error.mean()
        assert dtype == "bfloat16" or error.max() < max(1e-5, usual_error.max())


@pytest.mark.parametrize("mlp", [*GELUS, "swiglu"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_model_trains_the_same(mlp, jit_compile, monkeypatch):
    loss, weights = _trained(mlp, jit_compile)
    monkeypatch.setattr(mlp_block, "_WITH_GRADIENTS", mlp_block._ACTIVATIONS)
    expected_loss, expected = _trained(mlp, jit_compile)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for value, expected_value in zip(weights, expected, strict=True):
        assert_close(value, expected_value)


def _trained(mlp, jit_compile):
    """Loss and weights after steps so large that a wrong gradient shows."""
    keras.utils.set_random_seed(0)
    model = randomize(tiny_model(num_layers=2, mlp=mlp))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss, jit_compile=jit_compile)
    [images] = random_inputs(SHAPE, batch=8)
    history = model.fit(images, np.arange(8) % 5, batch_size=4, shuffle=False, verbose=0).history
    return history["loss"], model.get_weights()


@pytest.mark.parametrize("training", [None, False, True])
def test_only_training_takes_them(training, monkeypatch):
    calls = []
    monkeypatch.setitem(mlp_block._WITH_GRADIENTS, "gelu_tanh", lambda x: calls.append(x) or x)
    MlpBlock(20)(random_inputs((7, 12))[0], training=training)
    assert len(calls) == bool(training)
