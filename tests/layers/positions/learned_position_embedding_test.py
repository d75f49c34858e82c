import numpy as np
import pytest
import scipy.ndimage

from keras_vit import resampling
from keras_vit.layers import Learned2DPositionEmbedding, LearnedPositionEmbedding
from tests.reference import positions
from tests.test_case import (
    TENSORFLOW,
    assert_close,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    to_numpy,
)

GRIDS = [(2, 3), (4, 5), (3, 2), (1, 1), (2, 7), (5, 3), (1, 6)]


@pytest.mark.on_torch
def test_layer(tmp_path):
    run_layer_test(
        LearnedPositionEmbedding,
        {"grid_size": (2, 3), "num_prefix_rows": 2, "interpolation": "bicubic_antialias"},
        [(23, 12), (4, 5, 5)],  # 20 patches and 3 prefix tokens, one of which has no row.
        (23, 12),
        {"embedding": (8, 12)},
        tmp_path,
    )


@pytest.mark.parametrize("num_prefix_rows", [0, 1])
def test_adds_a_row_to_each_token(num_prefix_rows):
    layer = _built(num_prefix_rows)
    table = canonical_weights(layer)["embedding"]
    [tokens] = random_inputs((num_prefix_rows + 6, 12))
    assert_close(layer(tokens), tokens + table)


@pytest.mark.parametrize(("grid", "num_prefix_rows"), [(grid, i % 2) for i, grid in enumerate(GRIDS)])
def test_interpolates_with_corners_on_corners(grid, num_prefix_rows):
    layer = _built(num_prefix_rows)
    table = canonical_weights(layer)["embedding"]
    tokens, patches = random_inputs((1 + grid[0] * grid[1], 12), (*grid, 5))
    expected = tokens.astype("float64")
    expected[:, :num_prefix_rows] += table[:num_prefix_rows]
    expected[:, 1:] += positions.interpolate(table[num_prefix_rows:], (2, 3), grid)
    assert_close(layer(tokens, patches), expected)


# Each method for its own grid (`bicubic_offset` changes this grid too) and for two other grids.
@pytest.mark.parametrize(
    ("grid", "interpolation"),
    [
        *[((2, 3), method) for method in ("align_corners", "bicubic_offset")],
        *[(GRIDS[1 + (i + j) % 6], method) for i, method in enumerate(resampling.METHODS) for j in (0, 3)],
    ],
)
def test_interpolates_as_told(grid, interpolation):
    layer = _built(1, interpolation)
    table = canonical_weights(layer)["embedding"]
    tokens, patches = random_inputs((1 + grid[0] * grid[1], 12), (*grid, 5))
    rows = resampling.resize_grid(table[1:], (2, 3), grid, interpolation)
    assert_close(layer(tokens, patches), tokens + np.concatenate([table[:1], rows]))


@pytest.mark.parametrize("grid", [grid for grid in GRIDS if min(grid) > 1])
def test_reference_equals_scipy(grid):
    # Google's checkpoint loaders call SciPy's zoom, which is undefined for a single row or column.
    table = np.random.default_rng(0).normal(size=(2, 3, 12))
    expected = scipy.ndimage.zoom(table, (grid[0] / 2, grid[1] / 3, 1), order=1)
    np.testing.assert_allclose(positions.interpolate(table.reshape(6, 12), (2, 3), grid).reshape(*grid, 12), expected)


@pytest.mark.parametrize("kind", [LearnedPositionEmbedding, Learned2DPositionEmbedding])
def test_tokens_without_a_row_pass_unchanged(kind):
    layer = kind((2, 3), 1)
    tokens, patches = random_inputs((9, 12), (2, 3, 5))  # Two tokens stand between the first token and the patches.
    layer.build((None, None, 12))
    # Seven tokens have a row each.
    added = to_numpy(randomize(layer)(np.zeros((1, 7, 12), "float32")))
    expected = tokens + np.insert(added, [1, 1], 0, axis=1)
    assert_close(layer(tokens, patches), expected)


@pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow traces unknown image sizes")
def test_grid_unknown_until_a_graph_runs():
    import tensorflow as tf

    signature = [tf.TensorSpec((None, None, 12)), tf.TensorSpec((None, None, None, 5))]
    for num_prefix_rows, interpolation in ((0, "align_corners"), (1, "bicubic_offset")):
        layer = _built(num_prefix_rows, interpolation)
        function = tf.function(layer, input_signature=signature, autograph=False)
        for grid in ((2, 3), (4, 5)):
            inputs = [tf.constant(x) for x in random_inputs((1 + grid[0] * grid[1], 12), (*grid, 5))]
            assert_close(function(*inputs), layer(*inputs).numpy())


def test_starts_normal():
    layer = LearnedPositionEmbedding((20, 30), 1)
    layer.build((None, 601, 96))
    table = canonical_weights(layer)["embedding"]
    assert table.std() == pytest.approx(0.02, rel=0.02)
    assert abs(table.mean()) < 4 * 0.02 / np.sqrt(table.size)


@pytest.mark.parametrize("kind", [LearnedPositionEmbedding, Learned2DPositionEmbedding])
def test_interpolates_in_float32_under_mixed_precision(kind):
    # The table is exact in bfloat16. Its interpolation is rounded once; rounded interpolation weights, such as 1/14,
    # would give a larger error.
    layer = kind((16, 1), dtype="mixed_bfloat16")
    layer.build((None, 15, 8))
    table = 2.0 ** np.arange(16)[:, None] * np.ones(8)
    layer.set_weights([np.zeros((1, 4)), table[:, :4]] if kind is Learned2DPositionEmbedding else [table])
    output = to_numpy(layer(np.zeros((1, 15, 8), "float32"), np.zeros((1, 15, 1, 8), "float32")))
    expected = positions.interpolate(table, (16, 1), (15, 1))[None]
    np.testing.assert_allclose(output[..., 4:], expected[..., 4:], rtol=2.0**-8)


def test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"8 tokens do not fit 1 prefix rows and a grid of 2 x 3.*pass `patches`"):
        _built(1)(np.zeros((1, 8, 12), "float32"))
    with pytest.raises(ValueError, match=r"7 tokens do not fit 1 prefix rows and a grid of 4 x 5"):
        _built(1)(np.zeros((1, 7, 12), "float32"), np.zeros((1, 4, 5, 12), "float32"))
    with pytest.raises(ValueError, match=r"'nearest' is not an interpolation method. Available: 'align_corners', 'bi"):
        LearnedPositionEmbedding((2, 3), interpolation="nearest")


def _built(num_prefix_rows, interpolation="align_corners"):
    layer = LearnedPositionEmbedding((2, 3), num_prefix_rows, interpolation, name="tested")
    layer.build((None, None, 12))
    return randomize(layer)
