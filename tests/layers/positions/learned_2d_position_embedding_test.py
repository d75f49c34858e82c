import numpy as np
import pytest

from keras_vit import resampling
from keras_vit.layers import Learned2DPositionEmbedding
from tests.reference import positions
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, run_layer_test

GRIDS = [(4, 5), (3, 2), (1, 1), (2, 7), (5, 3), (1, 6)]


@pytest.mark.on_torch
def test_layer(tmp_path):
    run_layer_test(
        Learned2DPositionEmbedding,
        {"grid_size": (2, 3), "num_prefix_rows": 1, "interpolation": "bicubic_antialias"},
        [(22, 12), (4, 5, 5)],  # Another grid; one of the two prefix tokens has no row.
        (22, 12),
        {"prefix": (1, 12), "columns": (3, 6), "rows": (2, 6)},
        tmp_path,
    )


def _built(num_prefix_rows, interpolation="align_corners"):
    layer = Learned2DPositionEmbedding((2, 3), num_prefix_rows, interpolation, name="tested")
    layer.build((None, None, 12))
    return randomize(layer)


# Each grid with two methods, and each method with two grids.
@pytest.mark.parametrize(
    ("grid", "interpolation"),
    [(GRIDS[(i + j) % 6], method) for i, method in enumerate(resampling.METHODS) for j in (0, 1)],
)
def test_each_table_is_interpolated_along_its_axis(grid, interpolation):
    layer = _built(1, interpolation)
    weights = canonical_weights(layer)
    # The result is the same as for the full table of all patches, built from these two tables.
    whole = positions.learned_2d(weights["columns"], weights["rows"])
    rows = resampling.resize_grid(whole, (2, 3), grid, interpolation)
    tokens, patches = random_inputs((1 + grid[0] * grid[1], 12), (*grid, 5))
    assert_close(layer(tokens, patches), tokens + np.concatenate([weights["prefix"], rows]))


def test_starts_normal():
    layer = Learned2DPositionEmbedding((200, 300), 100, name="tested")
    layer.build((None, None, 96))
    for table in canonical_weights(layer).values():
        assert table.std() == pytest.approx(0.02, rel=0.05)


def test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"width must be even.*\(2, 6, 5\)"):
        Learned2DPositionEmbedding((2, 3))(np.zeros((2, 6, 5), "float32"))
    with pytest.raises(ValueError, match=r"8 tokens do not fit 1 prefix rows and a grid of 2 x 3.*pass `patches`"):
        _built(1)(np.zeros((1, 8, 12), "float32"))
    with pytest.raises(ValueError, match="'nearest' is not an interpolation method"):
        Learned2DPositionEmbedding((2, 3), interpolation="nearest")
