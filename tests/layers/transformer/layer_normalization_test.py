import keras
import numpy as np
import pytest

from keras_vit.layers import LayerNormalization
from tests.reference import vit as reference
from tests.test_case import (
    TENSORFLOW,
    assert_close,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    run_parity_test,
    run_twin_test,
    to_numpy,
)

pytestmark = pytest.mark.each_backend  # The operations depend on the backend.


def test_layer(tmp_path):
    weights = {"gamma": (12,), "beta": (12,)}
    run_layer_test(LayerNormalization, {"epsilon": 1e-3}, [(7, 12)], (7, 12), weights, tmp_path)


@pytest.mark.parametrize("shape", [(), (5, 7)])
def test_equals_the_equation(shape):
    def equation(inputs, weights):
        return reference.layer_norm(inputs, weights["gamma"], weights["beta"], 1e-3)

    run_parity_test(LayerNormalization(1e-3), equation, random_inputs((*shape, 12)))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_equals_the_layer_of_keras(policy):
    [inputs] = random_inputs((7, 12))
    ours = LayerNormalization(1e-6, dtype=policy)
    theirs = keras.layers.LayerNormalization(epsilon=1e-6, dtype=policy)
    run_twin_test(ours, theirs, inputs, tolerance=1e-6 if policy == "float32" else 2**-7)


def test_is_computed_in_float32_from_numbers_of_16_bits():
    inputs = np.array([[1000.0, 1001.0, 1002.0, 1005.0]], "float32")  # In 16 bits, all values but one would be equal.
    layer = LayerNormalization(dtype="mixed_bfloat16")
    assert_close(layer(inputs), to_numpy(LayerNormalization()(inputs)), tolerance=2**-7)


@pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow graphs have constants")
@pytest.mark.parametrize(("epsilon", "shape"), [(1e-12, (8, 12)), (1e-6, (3, 7, 12)), (0.1, (2, 3, 7, 12))])
def test_constants_change_nothing(shape, epsilon):
    # Epsilon matters for inputs that vary by a thousandth; TensorFlow's fused kernel uses another epsilon.
    import tensorflow as tf

    inputs = np.random.default_rng(0).normal(0, 1e-3, shape).astype("float32")
    layer = LayerNormalization(epsilon)
    layer.build(shape)
    weights = canonical_weights(randomize(layer, scale=1.0))
    values = [(weight, weight.numpy()) for weight in layer.weights]

    @tf.function(input_signature=[tf.TensorSpec([None, *shape[1:]])], autograph=False)
    def of_constants(inputs):
        with keras.StatelessScope([(weight, tf.constant(value)) for weight, value in values]):
            return tf.nn.relu(layer(tf.identity(inputs)) + 8.0) - 8.0

    expected = reference.layer_norm(inputs.astype("float64"), weights["gamma"], weights["beta"], epsilon)
    assert_close(of_constants(inputs), expected)


@pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow freezes graphs")
def test_who_freezes_a_model_gets_the_same():
    """Variables that a converter freezes to constants give the same result; the fused kernel is not used for them."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    inputs = np.random.default_rng(0).normal(0, 1e-3, (3, 7, 12)).astype("float32")
    layer = LayerNormalization(1e-6)
    layer.build(inputs.shape)
    randomize(layer, scale=1.0)
    function = tf.function(
        lambda inputs: tf.nn.relu(layer(tf.identity(inputs)) + 8.0) - 8.0,
        input_signature=[tf.TensorSpec([None, 7, 12])],
        autograph=False,
    )
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    assert not frozen.variables
    assert_close(frozen(tf.constant(inputs))[0], to_numpy(layer(inputs)))
