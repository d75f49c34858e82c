import functools

import numpy as np
import pytest

from keras_vit.layers import AxialEncoderBlock
from tests.layers.transformer.blocks import encoder_block
from tests.layers.transformer.encoder_block_test import QUERY_KEY_NORMS, SCALES, WEIGHT_SHAPES
from tests.reference import vit as reference
from tests.test_case import (
    TENSORFLOW,
    assert_close,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    to_numpy,
)

GRID = (2, 3)


def _built(**arguments):
    layer = AxialEncoderBlock(*(encoder_block(name=name, **arguments) for name in ("row", "column")), name="tested")
    layer.build((None, 6, 12), (None, *GRID, 12))
    return randomize(layer)


def _inputs(grid=GRID, batch=2):
    return random_inputs((grid[0] * grid[1], 12), (*grid, 5), batch=batch)


@pytest.mark.each_backend
def test_layer(tmp_path):
    block = {
        "mlp": "gelu_exact",
        "layer_norm_epsilon": 1e-5,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.2,
        "drop_path_rate": 0.3,
        "layer_scale": 0.7,
        "qk_norm": True,
    }
    arguments = {name: functools.partial(encoder_block, name=name, **block) for name in ("row", "column")}
    shapes = WEIGHT_SHAPES | SCALES | QUERY_KEY_NORMS
    both = {f"{name}/{path}": shape for name in ("row", "column") for path, shape in shapes.items()}
    run_layer_test(AxialEncoderBlock, arguments, [(6, 12), (*GRID, 5)], (6, 12), both, tmp_path)


@pytest.mark.parametrize("grid", [GRID, (4, 3)])
@pytest.mark.parametrize("arguments", [{}, {"layer_scale": 0.1, "qk_norm": True, "layer_norm_epsilon": 1e-3}])
def test_equals_the_equations(grid, arguments):
    layer = _built(**arguments)
    tokens, patches = _inputs(grid)
    equation = functools.partial(reference.axial_encoder_block, tokens.astype("float64"), canonical_weights(layer))
    assert_close(layer(tokens, patches), equation(grid, reference.gelu_tanh, arguments.get("layer_norm_epsilon", 1e-6)))


@pytest.mark.slow
def test_the_row_pass_stays_in_its_row_and_the_column_pass_in_its_column():
    """The Jacobian is zero across lines and nonzero within a line."""
    layer = _built()
    [grid] = random_inputs((*GRID, 12))
    changed = grid.copy()
    changed[:, 1, 2, 4] += 1.0
    by_row = np.abs(to_numpy(layer.row(changed)) - to_numpy(layer.row(grid))).max((0, 3))
    np.testing.assert_array_equal(by_row[0], 0)
    assert (by_row[1] > 1e-4).all()
    grid, changed = (x.transpose(0, 2, 1, 3) for x in (grid, changed))
    by_column = np.abs(to_numpy(layer.column(changed)) - to_numpy(layer.column(grid))).max((0, 3))
    np.testing.assert_array_equal(by_column[:2], 0)
    assert (by_column[2] > 1e-4).all()


@pytest.mark.slow
def test_both_passes_reach_every_patch():
    layer = _built()
    tokens, patches = _inputs()
    changed = tokens.copy()
    changed[:, 5, 4] += 1.0
    assert (np.abs(to_numpy(layer(changed, patches)) - to_numpy(layer(tokens, patches))).max((0, 2)) > 1e-4).all()


def test_attention_weights_are_those_of_the_passes():
    layer = _built()
    tokens, patches = _inputs()
    weights = to_numpy(layer.attention_weights(tokens, patches))
    assert weights.shape == (2, 2, 3, 6, 6)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    # The result equals that of a block that receives one row, or one column of the row pass's output, alone.
    grid = tokens.reshape(2, *GRID, 12)
    full = weights.reshape(2, 2, 3, *GRID, *GRID)
    for row in range(2):
        expected = to_numpy(layer.row.attention_weights(grid[:, [row]]))[:, 0]
        assert_close(full[:, 0, :, row, :, row], expected)
        assert not full[:, 0, :, row, :, 1 - row].any()
    between = to_numpy(layer.row(grid))
    for column in range(3):
        expected = to_numpy(layer.column.attention_weights(between[:, :, [column]].transpose(0, 2, 1, 3)))[:, 0]
        assert_close(full[:, 1, :, :, column, :, column], expected)
        assert not np.delete(full[:, 1, :, :, column], column, axis=-1).any()


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow traces unknown image sizes")
def test_grid_unknown_until_a_graph_runs():
    import tensorflow as tf

    layer = _built()
    signature = [tf.TensorSpec((None, None, 12)), tf.TensorSpec((None, None, None, 5))]
    methods = layer.call, layer.attention_weights

    @tf.function(input_signature=signature, autograph=False)
    def function(*inputs):
        return [method(*inputs) for method in methods]

    for grid in (GRID, (4, 2)):
        inputs = [tf.constant(x) for x in _inputs(grid)]
        for output, method in zip(function(*inputs), methods, strict=True):
            assert_close(output, method(*inputs).numpy())


@pytest.mark.slow
def test_drop_path_drops_a_branch_in_the_whole_image():
    layer = _built(drop_path_rate=0.5)
    tokens, patches = (np.repeat(x, 32, axis=0) for x in _inputs((4, 5), batch=1))
    outputs = to_numpy(layer(tokens, patches, training=True))
    # Each pass drops or keeps 2 branches per image. If each line drew its own mask, no two images would be alike.
    assert 4 <= len(np.unique(np.round(outputs.reshape(32, -1), 4), axis=0)) <= 16


@pytest.mark.slow
def test_each_rate_acts_in_training_only():
    inputs = _inputs(batch=8)
    expected = to_numpy(_built()(*inputs))
    for rate in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
        layer = _built(**{rate: 0.5})
        np.testing.assert_array_equal(to_numpy(layer(*inputs)), expected)
        assert not np.allclose(to_numpy(layer(*inputs, training=True)), expected), rate


def test_macs_are_those_of_the_lines():
    layer, block = _built(), encoder_block()
    block.build((None, 3, 12))
    assert layer.macs((None, 6, 12), (None, *GRID, 12)) == 2 * block.macs((1, 3, 12)) + 3 * block.macs((1, 2, 12))
