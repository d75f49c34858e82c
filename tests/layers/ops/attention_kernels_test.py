"""Attention in chunks and in kernels of the backend gives the same numbers in less memory."""

import math
import types

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.layers import MultiHeadSelfAttention
from keras_vit.layers.ops import attention_kernels
from keras_vit.layers.ops.attention_kernels import compute_attention, has_kernel
from tests.models.tiny import tiny_model
from tests.reference import vit as reference
from tests.test_case import (
    TENSORFLOW,
    assert_close,
    built,
    compute,
    gradients,
    random_inputs,
    randomize,
    run_parity_test,
)

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.each_backend
compiled = pytest.mark.skipif(BACKEND == "torch", reason="PyTorch uses its kernel and has no such compiler")


@pytest.fixture
def small_parts(monkeypatch):
    """Sequences longer than three tokens are attended in chunks of at most three queries."""
    monkeypatch.setattr(attention_kernels, "MAX_KEYS_AT_ONCE", 3)
    monkeypatch.setattr(attention_kernels, "QUERIES_PER_CHUNK", 3)
    monkeypatch.setattr(attention_kernels, "has_kernel", lambda *arrays: False)
    return _calls_by_parts(monkeypatch)


def _calls_by_parts(monkeypatch):
    """List of query shapes, one for each call of the attention in chunks, which has its own gradient."""
    calls, custom_gradient = [], ops.custom_gradient

    def counting(function):
        def call(*arrays):
            calls.append(tuple(arrays[0].shape))
            return custom_gradient(function)(*arrays)

        return call

    monkeypatch.setattr(ops, "custom_gradient", counting)
    return calls


def _expected(query, key, value, bias=0.0):
    return reference.softmax(query @ np.swapaxes(key, -1, -2) + bias) @ value


class _Attention(keras.layers.Layer):
    """`compute_attention` as a layer, which JAX compiles as a whole."""

    def __init__(self):
        super().__init__()
        self.built = True

    def call(self, *arrays):
        return compute_attention(*arrays)


@pytest.mark.parametrize(("num_queries", "lines"), [(7, ()), (5, (5,)), (2, ())])
def test_numbers_are_those_of_the_equation(lines, num_queries, small_parts):
    shapes = [(*lines, 3, num_queries, 4), (*lines, 3, 7, 4), (*lines, 3, 7, 2)]
    arrays = [2 * array for array in random_inputs(*shapes)]
    assert_close(compute(_Attention(), arrays), _expected(*arrays))
    assert len(small_parts) == (num_queries > 3)


@pytest.mark.parametrize(("longest", "lines"), [(3, ()), (3, (5,)), (100, (5,))])
def test_a_bias_is_added_to_the_keys(longest, lines, small_parts, monkeypatch):
    monkeypatch.setattr(attention_kernels, "MAX_KEYS_AT_ONCE", longest)
    _check_bias(lines)
    assert len(small_parts) == (longest == 3)


def _check_bias(lines):
    *arrays, bias = random_inputs((*lines, 3, 7, 4), (*lines, 3, 7, 4), (*lines, 3, 7, 4), (*lines, 7))
    expected = _expected(*arrays, 3 * bias[..., None, None, :])
    assert not np.allclose(expected, _expected(*arrays), atol=0.1)
    assert_close(compute(_Attention(), [*arrays, 3 * bias]), expected)


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="another process writes the file")
@pytest.mark.parametrize("name", ["model.tflite", "model.onnx", "model.xml"])
def test_files_of_long_sequences_are_written(name, tmp_path, small_parts):
    """Models with long sequences can be exported; the exporter compares the file with the model."""
    formats = {".onnx": "onnx", ".tflite": "litert", ".xml": "openvino"}
    path = tmp_path / name
    exported = keras_vit.export_model(randomize(tiny_model(num_layers=1, pooling="avg")), path, formats[path.suffix])
    assert small_parts
    assert exported.max_difference < 1e-5


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX has symbolic sizes")
def test_a_size_with_a_name_is_not_known(small_parts):
    import jax

    layer = built(MultiHeadSelfAttention(3))
    (shape,) = (jax.export.symbolic_shape("2, t, 12"),)
    jax.export.export(jax.jit(layer.call))(jax.ShapeDtypeStruct(shape, "float32"))
    assert not small_parts


@pytest.mark.parametrize("lines", [(), (5,)])
def test_the_kernel_takes_a_bias_and_lines(lines, monkeypatch):
    monkeypatch.setattr(attention_kernels, "has_kernel", lambda *arrays: True)
    _check_bias(lines)


@pytest.mark.parametrize(("shapes", "qk_norm"), [([(5, 7, 12)], True), ([(7, 12), (4, 12)], False)])
def test_layer_equals_the_equations(shapes, qk_norm, small_parts):
    inputs = [3 * x for x in random_inputs(*shapes)]
    run_parity_test(
        MultiHeadSelfAttention(3, qk_norm=qk_norm),
        lambda tokens, *rest: reference.multi_head_self_attention(tokens, rest[-1], *rest[:-1]),
        inputs,
    )
    assert small_parts


@compiled
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"] if TENSORFLOW else ["float32"])
def test_gradients_are_the_same(policy, small_parts, monkeypatch):
    tolerance = 1e-5 if policy == "float32" else 2**-6  # In bfloat16, the roundings differ.
    layer = randomize(built(MultiHeadSelfAttention(3, qk_norm=True, dtype=policy)))
    inputs = [3 * x for x in random_inputs((7, 12))]
    found = gradients(layer, inputs)
    assert small_parts
    monkeypatch.setattr(attention_kernels, "MAX_KEYS_AT_ONCE", 100)
    for path, expected in gradients(layer, inputs).items():
        largest = np.abs(expected).max()
        if not path.endswith("key_norm/beta"):  # The softmax cancels it.
            assert largest > 1e-5, path
            np.testing.assert_allclose(found[path], expected, rtol=0, atol=tolerance * largest, err_msg=path)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="looks at TensorFlow's graph")
def test_tensorflow_never_has_all_weights(monkeypatch):
    monkeypatch.setattr(attention_kernels, "QUERIES_PER_CHUNK", 50)
    for longest, expected in ((0, 2 * 3 * 50 * 300), (300, 2 * 3 * 300 * 300)):
        monkeypatch.setattr(attention_kernels, "MAX_KEYS_AT_ONCE", longest)
        assert _largest_of_a_step(300) == expected


def _largest_of_a_step(num_tokens):
    """Number of elements of the largest tensor of a training step, including loops and gradients."""
    import tensorflow as tf

    layer = built(MultiHeadSelfAttention(3), (num_tokens, 12))

    def step(tokens):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tokens, training=True) ** 2)
        return tape.gradient(loss, [variable.value for variable in layer.trainable_variables])

    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((2, num_tokens, 12))).graph
    graph = graph.as_graph_def(add_shapes=True)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    shapes = [shape for node in nodes for shape in node.attr["_output_shapes"].list.shape]
    return max(math.prod(dimension.size for dimension in shape.dim) for shape in shapes)


@pytest.mark.skipif(BACKEND != "jax", reason="needs JAX's compiler")
def test_jax_needs_memory_as_the_number_of_tokens(monkeypatch):
    """The temporary memory of compiled gradients doubles with the number of tokens; it does not grow fourfold."""
    monkeypatch.setattr(attention_kernels, "QUERIES_PER_CHUNK", 64)
    ratios = []
    for longest in (0, 2048):
        monkeypatch.setattr(attention_kernels, "MAX_KEYS_AT_ONCE", longest)
        short, long = _temporary_bytes(1024), _temporary_bytes(2048)
        ratios.append(long / short)
    assert ratios[0] < 2.1
    assert ratios[1] > 3.5


def _temporary_bytes(num_tokens):
    import jax

    def loss(*arrays):
        return (compute_attention(*arrays) ** 2).sum()

    function = jax.grad(loss, (0, 1, 2))
    arrays = [jax.ShapeDtypeStruct((2, 3, num_tokens, 8), "float32")] * 3
    return jax.jit(function).lower(*arrays).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.skipif(not TENSORFLOW, reason="does not depend on the backend")
def test_dropped_weights_and_relative_positions_are_not_in_parts(small_parts):
    [tokens] = random_inputs((7, 12))
    dropping = built(MultiHeadSelfAttention(3, dropout_rate=0.5))
    dropping(tokens, training=True)
    built(MultiHeadSelfAttention(3, relative_positions=True))(tokens)
    dropping.attention_weights(tokens)
    assert not small_parts
    dropping(tokens, training=False)
    assert small_parts


@pytest.mark.skipif(not TENSORFLOW, reason="does not depend on the backend")
def test_long_is_more_than_1024_tokens(monkeypatch):
    calls = _calls_by_parts(monkeypatch)
    monkeypatch.setattr(attention_kernels, "has_kernel", lambda *arrays: False)
    for num_tokens in (1024, 1025):
        arrays = random_inputs(*[(1, num_tokens, 2)] * 3, batch=1)
        assert_close(compute_attention(*map(ops.convert_to_tensor, arrays)), _expected(*arrays))
        assert len(calls) == (num_tokens > 1024)


@pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow traces unknown sizes")
def test_an_unknown_number_of_tokens_is_computed_at_once(small_parts):
    import tensorflow as tf

    layer = randomize(built(MultiHeadSelfAttention(3)))
    function = tf.function(layer, autograph=False).get_concrete_function(tf.TensorSpec((None, None, 12)))
    assert not small_parts
    [tokens] = random_inputs((7, 12))
    assert_close(function(tf.constant(tokens)), np.asarray(layer(tokens)))
    assert small_parts


@pytest.mark.parametrize(
    ("backend", "platform", "dtype", "key_dim", "bias", "expected"),
    [
        ("torch", "cpu", "float32", 5, None, False),
        ("torch", "cuda", "bfloat16", 5, np.zeros((2, 7)), True),
        ("jax", "gpu", "float16", 128, None, True),
        ("jax", "gpu", "float32", 64, None, False),
        ("jax", "gpu", "bfloat16", 20, None, False),
        ("jax", "gpu", "bfloat16", 136, None, False),
        ("jax", "gpu", "bfloat16", 64, np.zeros((2, 7)), False),
        ("jax", "cpu", "bfloat16", 64, None, False),
        ("jax", "tpu", "bfloat16", 64, None, False),
        ("tensorflow", "gpu", "bfloat16", 64, None, False),
    ],
)
def test_where_kernels_of_the_backend_are_used(backend, platform, dtype, key_dim, bias, expected, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: [f"{platform}:0", f"{platform}:1"])

    def array(num_tokens):
        shape, device = (2, 3, num_tokens, key_dim), types.SimpleNamespace(type=platform)  # As on PyTorch.
        return types.SimpleNamespace(shape=shape, dtype=dtype, device=device)

    assert has_kernel(array(7), array(256), bias) == expected
    assert has_kernel(array(7), array(257), bias) == (expected or backend == "torch")


@pytest.mark.parametrize(("lines", "queries"), [((), [(5, 12)]), ((5,), [])])  # Lines take no queries.
def test_the_kernel_gives_the_same_numbers(lines, queries, monkeypatch):
    calls, kernel = [], ops.dot_product_attention
    monkeypatch.setattr(attention_kernels, "has_kernel", lambda *arrays: True)
    monkeypatch.setattr(
        ops, "dot_product_attention", lambda *arrays, **rest: calls.append(1) or kernel(*arrays, **rest)
    )
    run_parity_test(
        MultiHeadSelfAttention(3),
        lambda tokens, *rest: reference.multi_head_self_attention(tokens, rest[-1], *rest[:-1]),
        [3 * x for x in random_inputs((*lines, 7, 12), *queries)],
    )
    assert calls
