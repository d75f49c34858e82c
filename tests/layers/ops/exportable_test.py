import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers.ops.exportable import exportable_multiply, exportable_operations
from keras_vit.layers.ops.rotation import rotate
from tests.test_case import assert_close, parts, quantize, randomize

BUILD = {
    "attention": (lambda: layers.MultiHeadSelfAttention(num_heads=3, qk_norm=True), (2, 7, 12)),
    "attention of lines": (lambda: layers.MultiHeadSelfAttention(num_heads=3), (2, 5, 7, 12)),
    "MLP": (lambda: layers.MlpBlock(mlp_dim=20), (2, 7, 12)),
    "SwiGLU": (lambda: layers.MlpBlock(mlp_dim=20, activation="swiglu"), (2, 7, 12)),
    "norm": (lambda: layers.LayerNormalization(epsilon=1e-3), (2, 7, 12)),
    "norm of groups": (lambda: layers.GroupNormalization(groups=3, epsilon=1e-3), (2, 5, 7, 12)),
}


@pytest.mark.parametrize("name", BUILD)
def test_results_are_the_same(name):
    build, shape = BUILD[name]
    layer = build()
    inputs = np.random.default_rng(0).normal(3, 2, shape).astype("float32")
    layer.build(shape)
    randomize(layer)
    expected = keras.ops.convert_to_numpy(layer(inputs))
    products = []

    def multiply(values, kernel):
        products.append((tuple(values.shape), tuple(kernel.shape)))
        return keras.ops.matmul(values, kernel)

    with exportable_operations(multiply):
        assert_close(keras.ops.convert_to_numpy(layer(inputs)), expected)
    assert len(products) == {"norm": 0, "norm of groups": 0, "MLP": 2, "SwiGLU": 2}.get(name, 4)
    assert all(of[:-1] == shape[:-1] and len(kernel) == 2 for of, kernel in products)


def test_channels_are_exchanged_by_a_product():
    rng, products = np.random.default_rng(0), []
    values, factors = (rng.normal(0, 1, shape).astype("float32") for shape in ((2, 3, 7, 8), (2, 7, 8)))
    expected = keras.ops.convert_to_numpy(rotate(values, factors, "interleaved"))
    with exportable_operations(lambda *arrays: products.append(arrays) or keras.ops.matmul(*arrays)):
        found = rotate(values, factors, "interleaved")
    assert len(products) == 1
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), expected, rtol=1e-6)


def test_a_norm_is_written_as_textbooks_have_it(monkeypatch):
    powers, power = [], keras.ops.power
    monkeypatch.setattr(keras.ops, "power", lambda *arrays: powers.append(arrays) or power(*arrays))
    layer, tokens = layers.LayerNormalization(), np.ones((2, 7, 12), "float32")
    layer(tokens)
    assert not powers
    with exportable_operations(keras.ops.matmul):
        layer(tokens)
    assert len(powers) == 1


@pytest.mark.slow
def test_layers_in_8_bits_stay_as_they_are():
    build, shape = BUILD["attention"]
    layer, tokens = build(), np.random.default_rng(0).normal(0, 1, shape).astype("float32")
    layer.build(shape)
    randomize(layer)
    for inner in parts(layer):
        if hasattr(inner, "kernel"):
            quantize(inner, "int8")
    expected = keras.ops.convert_to_numpy(layer(tokens))
    with exportable_operations(None.__class__):  # This cannot multiply: a call would fail.
        assert_close(keras.ops.convert_to_numpy(layer(tokens)), expected)


def test_ends():
    with exportable_operations(keras.ops.matmul):
        assert exportable_multiply() is keras.ops.matmul
    with pytest.raises(ZeroDivisionError), exportable_operations(keras.ops.matmul):
        raise ZeroDivisionError
    assert exportable_multiply() is None
