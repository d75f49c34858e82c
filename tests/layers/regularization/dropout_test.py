import keras
import numpy as np
import pytest

from keras_vit.layers import Dropout, DropPath
from tests.test_case import random_inputs, run_layer_test, to_numpy


@pytest.mark.each_backend
def test_layer(tmp_path):
    run_layer_test(Dropout, {"rate": 0.3, "seed": 7}, [(7, 12)], (7, 12), {}, tmp_path)


def test_keeps_the_expectation_and_drops_single_values():
    # For 12,000 values, the share that is kept has standard deviation sqrt(0.3 x 0.7 / 12000) = 0.0042.
    output = to_numpy(Dropout(0.3, seed=0)(np.ones((4000, 3), "float32"), training=True))
    np.testing.assert_allclose(np.unique(output), [0, 1 / 0.7], rtol=1e-6)
    assert (output > 0).mean() == pytest.approx(0.7, abs=4 * 0.0042)
    correlation = np.corrcoef((output > 0).T)
    assert np.abs(correlation - np.eye(3)).max() < 4 / np.sqrt(4000)


@pytest.mark.parametrize("kind", [Dropout, DropPath])
def test_does_nothing_at_inference(kind):
    [values] = random_inputs((7, 12))
    layer = kind(0.9)
    np.testing.assert_array_equal(to_numpy(layer(values)), values)
    np.testing.assert_array_equal(to_numpy(layer(values, training=False)), values)
    np.testing.assert_array_equal(to_numpy(kind(0.0)(values, training=True)), values)


@pytest.mark.parametrize("kind", [Dropout, DropPath])
def test_has_no_generator_without_a_rate(kind):
    # An unused variable would still be stored and traced in each block.
    assert not kind(0.0).variables
    assert len(kind(0.1).variables) == 1


def test_the_stream_is_that_of_keras():
    ours, theirs = Dropout(0.5, seed=3), keras.layers.Dropout(0.5, seed=3)
    values = np.ones((64, 3), "float32")
    for _ in range(2):
        np.testing.assert_array_equal(to_numpy(ours(values, training=True)), to_numpy(theirs(values, training=True)))
