"""The values of smaller weights, and the outputs of models with smaller weights."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export.precision import in_bfloat16, round_to_int8
from keras_vit.layers.transformer import attention
from tests.export.exports import export_option, meta_graph
from tests.models.tiny import SHAPE, tiny_model
from tests.test_case import TENSORFLOW, first, quantize, randomize, rest_slow, to_numpy

# The input axes of the kernels of tiny models.
INPUTS = {("query",): (0,), ("key",): (0,), ("value",): (0,), ("attention", "output"): (0, 1), ("mlp", "output"): (0,)}
INPUTS |= {("hidden",): (0,), ("predictions",): (0,), ("patch_embedding",): (0, 1, 2)}
MIXED = keras_vit.RotaryConfig("mixed", coordinates="grid", reference_grid=(5, 7))


def _images(model):
    return np.random.default_rng(0).uniform(-1, 1, (4, *model.input_shape[1:])).astype("float32")


@pytest.mark.parametrize("changes", rest_slow([{"pooling": "map"}, {"distillation_token": True}]), ids=str)
def test_bfloat16(changes):
    model = randomize(tiny_model(num_layers=1, classifier_activation="softmax", **changes), scale=0.3)
    weights = [to_numpy(weight) for weight in model.weights]
    smaller = in_bfloat16(model)
    images = _images(model)
    expected, found = first(model(images)), first(smaller(images))
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    assert 0 < np.abs(to_numpy(found) - to_numpy(expected)).max() < 0.05  # bfloat16 has a mantissa of 8 bits.
    assert all(variable.dtype == "float32" for variable in model.variables)
    for before, after in zip(weights, model.weights, strict=True):
        np.testing.assert_array_equal(before, to_numpy(after))


def _nested():
    """A classifier that nests another model."""
    inner = randomize(tiny_model(include_top=False, num_layers=1), scale=0.3)
    return keras.Sequential([keras.Input(SHAPE), inner, keras.layers.Dense(3, activation="softmax")])


@pytest.mark.parametrize("rotary", rest_slow([MIXED, keras_vit.RotaryConfig()]), ids=["mixed", "axial"])
def test_rotations_stay_in_float32(rotary, monkeypatch):
    """In bfloat16, the angles of patches far from the origin would be wrong by several degrees."""
    model = randomize(tiny_model(rotary=rotary))
    smaller, factors, rotate = in_bfloat16(model), [], attention.rotate
    monkeypatch.setattr(attention, "rotate", lambda *arguments: factors.append(arguments[1]) or rotate(*arguments))
    for each in (model, smaller):
        each(_images(model))
    assert len(factors) == 2 * 2 * 2  # Queries and keys in two blocks of two models.
    for expected, found in zip(factors[:4], factors[4:], strict=True):
        assert keras.backend.standardize_dtype(found.dtype) == "float32"
        np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))


def test_nested_in_bfloat16():
    model = _nested()
    smaller = in_bfloat16(model)
    assert 0 < np.abs(to_numpy(smaller(_images(model))) - to_numpy(model(_images(model)))).max() < 0.05
    assert {variable.dtype for variable in smaller.variables} == {"float32", "bfloat16"}
    assert {variable.dtype for variable in smaller.layers[-1].variables} == {"float32"}


def test_8_bits_of_each_output_channel():
    model = randomize(tiny_model(pooling="map", rotary=MIXED))
    kernels = [weight for weight in model.weights if weight.name == "kernel"]  # The frequencies are not rounded.
    before = [to_numpy(kernel) for kernel in kernels]
    rounded = round_to_int8(model)
    assert [weight for weight, *_ in rounded] == kernels
    assert len(kernels) == 1 + 3 * 6 + 1  # Patch embedding, 6 in each of two blocks and the pooling, classifier.
    for (weight, values, scale), kernel in zip(rounded, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), kernel)
        last = weight.path.split("/")[:-1]
        [axes] = [axes for name, axes in INPUTS.items() if tuple(last[-len(name) :]) == name]
        assert (values.dtype, scale.dtype) == ("int8", "float32")
        np.testing.assert_array_equal(np.abs(values).max(axes), 127)  # Every channel uses the full range of 8 bits.
        assert np.abs(values * scale - kernel).max() <= 0.5001 * scale.max()
        assert scale.size == kernel.size / np.prod([kernel.shape[axis] for axis in axes])


def test_8_bits_of_convolutions_of_nested_models_and_of_zeros():
    model = keras_vit.ResNet("R50", stage_depths=(1,), width=4, input_shape=(32, 32, 3), classes=5)
    convolutions = [weight for weight, *_ in round_to_int8(model)]
    assert convolutions == [weight for weight in model.weights if weight.ndim >= 2]
    assert len(round_to_int8(_nested())) == 1 + 6 + 1
    depthwise = keras.Sequential([keras.Input((5, 5, 4)), keras.layers.DepthwiseConv2D(3)])
    assert [scale.shape for *_, scale in round_to_int8(depthwise)] == [(1, 1, 4, 1)]
    predictions = model.layers[-1].kernel
    predictions.assign(0 * predictions)
    _, values, scale = round_to_int8(model)[-1]
    np.testing.assert_array_equal(values * scale, 0 * to_numpy(predictions))


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="elsewhere_test.py tests other backends")
def test_a_saved_model_does_not_keep_kernels_twice(tmp_path_factory):
    """The kernels are stored in 8 bits only. tests/serving compares its answers with a model with these kernels."""
    import tensorflow as tf

    model, folder = export_option(tmp_path_factory, "int8 of any size")
    kernels = [tuple(kernel.shape) for kernel, *_ in round_to_int8(model)]
    biases = {tuple(weight.shape) for weight in model.weights if weight.name == "bias"}
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    in_float32 = [name for name, dtype in reader.get_variable_to_dtype_map().items() if dtype == tf.float32]
    assert not [name for name in in_float32 if tuple(reader.get_variable_to_shape_map()[name]) in kernels]
    written = meta_graph(folder).graph_def
    nodes = [*written.node, *(node for function in written.library.function for node in function.node_def)]
    tensors = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    shapes = {tuple(dim.size for dim in tensor.tensor_shape.dim) for tensor in tensors if tensor.dtype == 1}
    assert biases <= shapes
    assert not shapes & set(kernels)


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="elsewhere_test.py tests other backends")
def test_a_saved_model_of_what_keras_has_quantized(tmp_path):
    model = randomize(tiny_model(classifier_activation="softmax"))
    quantize(model, "int8")
    folder = keras_vit.export_saved_model(model, tmp_path, signatures=["serving_default"])
    parity = json.loads((folder / "keras_vit.json").read_text())["parity"]
    assert parity["effect"] > 1e-3
    assert max(parity["max_difference"].values()) < 1e-3  # A value can be rounded in the other direction.
