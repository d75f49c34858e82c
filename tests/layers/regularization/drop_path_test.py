import keras
import numpy as np
import pytest

from keras_vit.layers import DropPath
from tests.test_case import run_layer_test, to_numpy


@pytest.mark.each_backend
def test_layer(tmp_path):
    run_layer_test(DropPath, {"rate": 0.3, "seed": 7}, [(7, 12)], (7, 12), {}, tmp_path)


def test_keeps_the_expectation_and_drops_whole_images():
    # For 4,000 images, the share that is kept has standard deviation sqrt(0.3 x 0.7 / 4000) = 0.0072.
    output = to_numpy(DropPath(0.3, seed=0)(np.ones((4000, 2, 3), "float32"), training=True))
    scales = output[:, 0, 0]
    np.testing.assert_array_equal(output, np.broadcast_to(scales[:, None, None], output.shape))
    np.testing.assert_allclose(np.unique(scales), [0, 1 / 0.7], rtol=1e-6)
    assert (scales > 0).mean() == pytest.approx(0.7, abs=4 * 0.0072)
    assert scales.mean() == pytest.approx(1.0, abs=4 * 0.0072 / 0.7)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_takes_branches_of_any_rank(rank):
    output = to_numpy(DropPath(0.5, seed=0)(np.ones((64, *[2] * (rank - 1)), "float32"), training=True))
    assert set(output.reshape(64, -1).mean(1)) == {0, 2}


def test_the_seed_decides_and_each_call_draws_anew():
    branch = np.ones((64, 1), "float32")
    first, second = DropPath(0.5, seed=3), DropPath(0.5, seed=3)
    draws = [to_numpy(layer(branch, training=True)) for layer in (first, second, first)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).any()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16"])
def test_keeps_the_type_of_the_branch(policy):
    output = DropPath(0.5, dtype=policy)(np.ones((64, 3), "float32"), training=True)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
