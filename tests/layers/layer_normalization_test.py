import keras
import numpy as np
import pytest

from keras_vit.layers import EncoderBlock, LayerNormalization
from keras_vit.layers.layer_normalization import _BETA
from keras_vit.textbook import textbook_operations
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


def test_layer(tmp_path):
    weights = {"gamma": (12,), "beta": (12,)}
    run_layer_test(LayerNormalization, {"epsilon": 1e-3}, [(7, 12)], (7, 12), weights, tmp_path)


@pytest.mark.parametrize("shape", [(), (7,), (5, 7)])
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
    inputs = np.array([[1000.0, 1001.0, 1002.0, 1005.0]], "float32")  # Of 2-byte numbers all but one would be equal.
    layer = LayerNormalization(dtype="mixed_bfloat16")
    assert_close(layer(inputs), to_numpy(LayerNormalization()(inputs)), tolerance=2**-7)


@pytest.mark.skipif(not TENSORFLOW, reason="other backends have no such operations")
@pytest.mark.parametrize("constants", [True, False])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("shape", [(8, 12), (3, 7, 12), (2, 3, 7, 12)])
def test_the_kernel_of_tensorflow_changes_nothing(shape, epsilon, constants):
    # Of inputs that vary by a thousandth the epsilon makes much; a kernel of TensorFlow's has one of its own.
    import tensorflow as tf

    inputs = np.random.default_rng(0).normal(0, 1e-3, shape).astype("float32")
    layer = LayerNormalization(epsilon)
    layer.build(shape)
    weights = canonical_weights(randomize(layer, scale=1.0))
    values = [(weight, weight.numpy()) for weight in layer.weights if constants]

    @tf.function(input_signature=[tf.TensorSpec([None, *shape[1:]])], autograph=False)
    def compute(inputs):
        with keras.StatelessScope([(weight, tf.constant(value)) for weight, value in values]):
            return tf.nn.relu(layer(tf.identity(inputs)) + 8.0) - 8.0

    expected = reference.layer_norm(inputs.astype("float64"), weights["gamma"], weights["beta"], epsilon)
    assert_close(compute(inputs), expected)


@pytest.mark.skipif(not TENSORFLOW, reason="other backends have no such operations")
@pytest.mark.parametrize("build", [LayerNormalization, lambda: EncoderBlock(num_heads=3, mlp_dim=20)])
def test_the_kernel_is_not_for_training_and_not_for_other_runtimes(build):
    import tensorflow as tf

    layer = build()
    layer.build((2, 7, 12))

    def is_for_the_kernel(training):
        function = tf.function(lambda tokens: layer(tokens, training=training), autograph=False)
        graph = function.get_concrete_function(tf.TensorSpec((2, 7, 12))).graph
        constants = [tf.make_ndarray(op.get_attr("value")) for op in graph.get_operations() if op.type == "Const"]
        return any(np.any(value == np.float32(_BETA)) for value in constants)

    assert is_for_the_kernel(training=False)
    assert not is_for_the_kernel(training=True)
    with textbook_operations(None):
        assert not is_for_the_kernel(training=False)


@pytest.mark.parametrize("epsilon", [0, -1e-6])
def test_refuses_an_epsilon_that_is_not_positive(epsilon):
    with pytest.raises(ValueError, match=f"positive.*Received: {epsilon}"):
        LayerNormalization(epsilon)
