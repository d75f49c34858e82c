import functools

import keras
import numpy as np
import pytest

from keras_vit.layers import SincosPositionEmbedding
from tests.reference import positions
from tests.test_case import random_inputs, run_layer_test, run_parity_test, to_numpy


@pytest.mark.on_torch
def test_layer(tmp_path):
    run_layer_test(SincosPositionEmbedding, {"temperature": 100.0}, [(7, 12), (2, 3, 5)], (7, 12), {}, tmp_path)


def _add(tokens, patches, weights, temperature=10_000.0):
    grid, num_front = patches.shape[1:3], tokens.shape[1] - patches.shape[1] * patches.shape[2]
    tokens[:, num_front:] += positions.sincos_2d(*grid, tokens.shape[-1], temperature)
    return tokens


@pytest.mark.parametrize(("grid", "num_front", "hidden_dim"), [((2, 3), 2, 12), ((4, 1), 0, 12), ((1, 6), 1, 8)])
def test_equals_the_equations(grid, num_front, hidden_dim):
    inputs = random_inputs((num_front + grid[0] * grid[1], hidden_dim), (*grid, 5))
    run_parity_test(SincosPositionEmbedding(), _add, inputs)


def test_temperature():
    inputs = random_inputs((7, 12), (2, 3, 5))
    run_parity_test(SincosPositionEmbedding(100.0), functools.partial(_add, temperature=100.0), inputs)


def test_columns_first_then_rows():
    rows = to_numpy(SincosPositionEmbedding()(np.zeros((1, 6, 8), "float32"), np.zeros((1, 2, 3, 8), "float32")))[0]
    np.testing.assert_allclose(rows[:, 0], np.sin([0, 1, 2, 0, 1, 2]), atol=1e-6)
    np.testing.assert_allclose(rows[:, 2], np.cos([0, 1, 2, 0, 1, 2]), atol=1e-6)
    np.testing.assert_allclose(rows[:, 4], np.sin([0, 0, 0, 1, 1, 1]), atol=1e-6)
    np.testing.assert_allclose(rows[:, 6], np.cos([0, 0, 0, 1, 1, 1]), atol=1e-6)


def test_computes_in_float32_under_mixed_precision():
    # bfloat16 cannot represent column 301, and the sine of the nearest value differs greatly.
    inputs = np.zeros((1, 302, 8), "float32"), np.zeros((1, 1, 302, 8), "float32")
    rows = to_numpy(SincosPositionEmbedding(dtype="mixed_bfloat16")(*inputs))[0]
    np.testing.assert_allclose(rows, positions.sincos_2d(1, 302, 8), atol=2.0**-8)


@pytest.mark.parametrize("hidden_dim", [4, 10])
def test_refuses_a_width_without_room_for_all_four(hidden_dim):
    with pytest.raises(ValueError, match="multiple of 4 and at least 8"):
        SincosPositionEmbedding()(np.zeros((1, 6, hidden_dim), "float32"), np.zeros((1, 2, 3, hidden_dim), "float32"))


def test_symbolic_grid_may_be_unknown():
    output = SincosPositionEmbedding()(keras.KerasTensor((None, None, 12)), keras.KerasTensor((None, None, None, 12)))
    assert output.shape == (None, None, 12)
