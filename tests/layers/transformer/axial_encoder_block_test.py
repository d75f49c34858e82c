import functools

import numpy as np
import pytest

from keras_vit.layers import AxialEncoderBlock
from tests.layers.transformer.blocks import encoder_block
from tests.layers.transformer.encoder_block_test import WEIGHT_SHAPES
from tests.reference import vit as reference
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, run_layer_test, to_numpy

GRID = (2, 3)


def _built(**arguments):
    layer = AxialEncoderBlock(*(encoder_block(name=name, **arguments) for name in ("row", "column")), name="tested")
    layer.build((None, 6, 12), (None, *GRID, 12))
    return randomize(layer)


def _inputs(grid=GRID, batch=2):
    return random_inputs((grid[0] * grid[1], 12), (*grid, 5), batch=batch)


@pytest.mark.on_torch
def test_layer(tmp_path):
    block = {"mlp": "gelu_exact", "layer_norm_epsilon": 1e-5, "dropout_rate": 0.1, "attention_dropout_rate": 0.2}
    block |= {"drop_path_rate": 0.3}
    arguments = {name: functools.partial(encoder_block, name=name, **block) for name in ("row", "column")}
    both = {f"{name}/{path}": shape for name in ("row", "column") for path, shape in WEIGHT_SHAPES.items()}
    run_layer_test(AxialEncoderBlock, arguments, [(6, 12), (*GRID, 5)], (6, 12), both, tmp_path)


@pytest.mark.parametrize(
    ("grid", "arguments"), [(GRID, {}), ((4, 3), {"layer_scale": 0.1, "qk_norm": True, "layer_norm_epsilon": 1e-3})]
)
def test_equals_the_equations(grid, arguments):
    layer = _built(**arguments)
    tokens, patches = _inputs(grid)
    equation = functools.partial(reference.axial_encoder_block, tokens.astype("float64"), canonical_weights(layer))
    assert_close(layer(tokens, patches), equation(grid, reference.gelu_tanh, arguments.get("layer_norm_epsilon", 1e-6)))


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


def test_drop_path_drops_a_branch_in_the_whole_image():
    layer = _built(drop_path_rate=0.5)
    tokens, patches = (np.repeat(x, 32, axis=0) for x in _inputs((4, 5), batch=1))
    outputs = to_numpy(layer(tokens, patches, training=True))
    # Each pass drops or keeps 2 branches per image. If each line drew its own mask, no two images would be alike.
    assert 4 <= len(np.unique(np.round(outputs.reshape(32, -1), 4), axis=0)) <= 16


def test_macs_are_those_of_the_lines():
    layer, block = _built(), encoder_block()
    block.build((None, 3, 12))
    assert layer.macs((None, 6, 12), (None, *GRID, 12)) == 2 * block.macs((1, 3, 12)) + 3 * block.macs((1, 2, 12))
