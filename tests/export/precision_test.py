import keras
import numpy as np
import pytest

from keras_vit.export.precision import with_precision
from tests.models.tiny import SHAPE, STEM, tiny_model
from tests.test_case import randomize, rest_slow, to_numpy


def _images(model):
    return np.random.default_rng(0).uniform(-1, 1, (4, *model.input_shape[1:])).astype("float32")


def test_float32_is_the_model_itself():
    model = tiny_model()
    assert with_precision(model, "float32") is model


@pytest.mark.parametrize(
    "changes", rest_slow([{"pooling": "map"}, {}, {"distillation_token": True}, {"stem": STEM}]), ids=str
)
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_smaller_weights(changes, precision):
    shape = (64, 96, 3) if "stem" in changes else SHAPE
    model = randomize(tiny_model(input_shape=shape, classifier_activation="softmax", **changes), scale=0.3)
    weights = [to_numpy(weight) for weight in model.weights]
    smaller = with_precision(model, precision)
    images = _images(model)
    expected, found = model.predict(images, verbose=0), smaller.predict(images, verbose=0)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - expected).max() < 0.05  # Of 8 bits of mantissa, or 8 bits.
    assert all(variable.dtype == "float32" for variable in model.variables)
    for before, after in zip(weights, model.weights, strict=True):
        np.testing.assert_array_equal(before, to_numpy(after))


def test_bfloat16_classifies_in_float32():
    variables = with_precision(tiny_model(), "bfloat16").variables
    in_float32 = {variable.path for variable in variables if variable.dtype == "float32"}
    assert in_float32 == {"predictions/kernel", "predictions/bias"}


@pytest.mark.slow
def test_int8_is_a_quarter():
    model = tiny_model()
    smaller = with_precision(model, "int8")
    kernels = {variable.path: variable for variable in smaller.variables if variable.dtype == "int8"}
    # Of each of the two blocks six, and the classifier.
    assert len(kernels) == 13
    assert sum(np.prod(kernel.shape) for kernel in kernels.values()) == 2 * (4 * 12 * 12 + 2 * 12 * 20) + 12 * 5


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_nested(precision):
    inner = randomize(tiny_model(include_top=False), scale=0.3)
    model = keras.Sequential([keras.Input(SHAPE), inner, keras.layers.Dense(3, activation="softmax")])
    smaller = with_precision(model, precision)
    difference = np.abs(smaller.predict(_images(model), verbose=0) - model.predict(_images(model), verbose=0)).max()
    assert 0 < difference < 0.05
    expected = {"float32", precision}
    assert {variable.dtype for variable in smaller.variables} == expected
    assert {variable.dtype for variable in smaller.layers[-1].variables} >= {"float32"}
