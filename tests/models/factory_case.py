"""`run_factory_test`: a test that every model factory must pass."""

import keras
import numpy as np
import pytest

from keras_vit import preprocess_input
from tests.test_case import assert_close, random_inputs, randomize, to_numpy


def run_factory_test(factory, hidden_dim, num_tokens, size, folder):
    """Checks the arguments that all models of `keras.applications` share.

    Args:
        factory: Function with the arguments of `keras_vit.ViT` except the variant.
        hidden_dim: Width of its tokens.
        num_tokens: Function of (height, width) that returns the number of tokens for pooling=None.
        size: (height, width) of accepted images, not square.
        folder: Folder for files.
    """
    shape = (*size, 3)
    logits = randomize(factory(input_shape=shape, classes=7, classifier_activation=None))
    probabilities = randomize(factory(input_shape=shape, classes=7))
    _check_outputs(factory, hidden_dim, num_tokens(*size), logits, probabilities)
    _check_inputs(factory, size, probabilities)
    _check_preprocessing(factory, logits)
    _check_weights_file(factory, probabilities, folder)


def _check_outputs(factory, hidden_dim, num_tokens, logits, probabilities):
    shape = logits.input_shape[1:]
    [images] = random_inputs(shape)
    default = factory(input_shape=shape)
    assert default.output_shape == (None, 1000)
    assert_close(default(images), np.full((2, 1000), 1e-3))  # The head starts at zero.
    sigmoid = randomize(factory(input_shape=shape, classes=7, classifier_activation="sigmoid"))
    scores = to_numpy(logits(images))
    assert_close(probabilities(images), np.exp(scores) / np.exp(scores).sum(1, keepdims=True))
    assert_close(sigmoid(images), 1 / (1 + np.exp(-scores)))
    for pooling, expected in (
        ("token", (hidden_dim,)),
        ("avg", (hidden_dim,)),
        ("map", (hidden_dim,)),
        (None, (num_tokens, hidden_dim)),
    ):
        model = factory(include_top=False, input_shape=shape, pooling=pooling)
        assert model.output_shape == (None, *expected)
        assert tuple(model(images).shape) == (2, *expected)
    with pytest.raises(ValueError, match="include_top=True needs a pooling"):
        factory(input_shape=shape, pooling=None)


def _check_inputs(factory, size, plain):
    for channels in (1, 4):
        shape = (*size, channels)
        model = factory(input_shape=shape, classes=2, name="named")
        assert (model.name, model.input_shape) == ("named", (None, *shape))
        assert model(np.zeros((1, *shape), "float32")).shape == (1, 2)
    shape = (*size, 3)
    [images] = random_inputs(shape)
    inputs = keras.Input(shape)
    direct = randomize(factory(input_tensor=inputs, classes=7))
    behind = randomize(factory(input_tensor=keras.layers.Rescaling(2.0)(inputs), classes=7))
    assert direct.inputs[0] is behind.inputs[0] is inputs
    assert direct.input_shape == behind.input_shape == plain.input_shape == (None, *shape)
    assert_close(direct(images), to_numpy(plain(images)))
    assert_close(behind(images), to_numpy(plain(2 * images)))


def _check_preprocessing(factory, plain):
    shape = plain.input_shape[1:]
    pixels = np.random.default_rng(3).integers(0, 256, (2, *shape)).astype("uint8")
    inside = randomize(factory(input_shape=shape, classes=7, classifier_activation=None, include_preprocessing=True))
    expected = to_numpy(plain(preprocess_input(pixels, plain)))
    assert_close(inside(pixels), expected)
    assert_close(inside(preprocess_input(pixels, inside)), expected)
    assert not np.allclose(to_numpy(plain(pixels.astype("float32"))), expected)


def _check_weights_file(factory, model, folder):
    shape = model.input_shape[1:]
    path = folder / "mine.weights.h5"
    model.save_weights(path)
    for weights in (path, str(path)):
        loaded = factory(weights=weights, input_shape=shape, classes=7)
        for array, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(array, expected)
    for weights, error, message in (
        ("missing.weights.h5", ValueError, r"weights='missing.weights.h5': there is no such file"),
        ("missing.npz", FileNotFoundError, r"There is no file or folder 'missing.npz' \(working folder: "),
        (folder / "missing", FileNotFoundError, r"There is no file or folder '.*missing' \(working folder: "),
        ("imagenet-22k", ValueError, r"'imagenet-22k' is not the name of published weights.*list_weights"),
        ("B/16@imagenet-22k", ValueError, r"'B/16@imagenet-22k' is not the name of published weights.*list_weights"),
    ):
        with pytest.raises(error, match=message):
            factory(weights=weights, input_shape=shape)
