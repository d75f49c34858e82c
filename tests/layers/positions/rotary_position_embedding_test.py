import dataclasses

import keras
import numpy as np
import pytest

from keras_vit import RotaryConfig
from keras_vit.layers import RotaryPositionEmbedding
from keras_vit.layers.ops.rotation import rotate
from tests.reference import positions
from tests.test_case import MIXED_POLICY, WithoutBatch, assert_close, random_inputs, run_layer_test, to_numpy

AXIAL = [
    pytest.param(RotaryConfig(), marks=pytest.mark.on_torch),
    pytest.param(RotaryConfig("axial", 50.0, "interleaved", "grid", (4, 7)), marks=pytest.mark.on_torch),
    RotaryConfig("axial", 20.0, "interleaved", axis_order="xy"),
    RotaryConfig("axial", 10.0, "half", "grid", None, 1.0, "xy"),
    RotaryConfig("axial", 10.0, "half", "grid", (9, 2), -0.5),
]
MIXED = [
    RotaryConfig("mixed", 10.0, "half", "grid", (4, 7), 1.0, "xy"),
    RotaryConfig("mixed", 10.0, "interleaved", "grid", None, -0.5, "yx"),
    RotaryConfig("mixed"),
]


def _patches(height, width):
    return np.zeros((1, height, width, 5), "float32")


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("rotary", "shape"),
    [
        (RotaryConfig("axial", 50.0, "interleaved", "grid", (4, 7), 0.5, "xy"), (2, 17, 12)),
        (RotaryConfig("mixed"), (2, 17)),
    ],
)
def test_layer(rotary, shape, tmp_path):
    arguments = {"rotary": dataclasses.asdict(rotary), "key_dim": 12, "num_prefix_tokens": 2}
    inputs, output = [(3, 5, 7)], WithoutBatch(shape)
    run_layer_test(RotaryPositionEmbedding, arguments, inputs, output, {}, tmp_path, output_dtype="float32")


@pytest.mark.parametrize("rotary", AXIAL)
def test_axial_rotation_equals_the_equations(rotary):
    [values] = random_inputs((3, 17, 12))  # (B, K, T, Dh)
    factors = RotaryPositionEmbedding(rotary, 12, 2)(_patches(3, 5))
    theta = positions.rotary_angles((3, 5), 2, 12, rotary)
    expected = positions.rotated(values.astype("float64"), theta, rotary.layout)
    assert_close(rotate(values, factors, rotary.layout), expected)


@pytest.mark.parametrize("rotary", MIXED)
def test_coordinates_equal_the_equations(rotary):
    found = to_numpy(RotaryPositionEmbedding(rotary, 12, 2)(_patches(3, 5)))
    np.testing.assert_array_equal(found[:, :2], 0)
    order = [0, 1] if rotary.axis_order == "yx" else [1, 0]
    assert_close(found[:, 2:], positions.coordinates(3, 5, rotary)[:, order].T)


def test_computes_in_float32_under_mixed_precision():
    # bfloat16 cannot represent column 301, and the sine of the nearest value differs greatly.
    rotary = RotaryConfig(coordinates="grid")
    exact = RotaryPositionEmbedding(rotary, 8)(_patches(1, 302))
    np.testing.assert_array_equal(
        to_numpy(RotaryPositionEmbedding(rotary, 8, dtype=MIXED_POLICY)(_patches(1, 302))), to_numpy(exact)
    )
    np.testing.assert_allclose(to_numpy(exact)[0, -1, 2:4], np.cos([301, 301 / 10]), atol=1e-4)


def test_symbolic_grid_may_be_unknown():
    for rotary, shape in ((RotaryConfig(), (2, None, 8)), (RotaryConfig("mixed"), (2, None))):
        assert RotaryPositionEmbedding(rotary, 8)(keras.KerasTensor((None, None, 3, 12))).shape == shape


def test_refuses_impossible_arguments():
    with pytest.raises(ValueError, match=r"rotary must be a keras_vit.RotaryConfig. Received: 'axial'"):
        RotaryPositionEmbedding("axial", 8)
    with pytest.raises(ValueError, match=r"key_dim must be a multiple of 4. Received: key_dim=6"):
        RotaryPositionEmbedding(RotaryConfig(), 6)
