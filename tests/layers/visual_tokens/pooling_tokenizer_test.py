import functools

import pytest

from keras_vit.layers import PoolingTokenizer
from tests.layers.convolutional.pointwise_convolution_test import projection_shapes
from tests.reference import visual_transformer as reference
from tests.test_case import assert_close, random_inputs, run_layer_test, run_parity_test


@pytest.mark.on_torch
def test_layer(tmp_path):
    arguments = {"grid_size": (2, 3), "token_dim": 10, "use_batch_norm": True}
    shapes = projection_shapes("projection", 6, 10)
    run_layer_test(PoolingTokenizer, arguments, [(5, 7, 6)], (6, 10), shapes, tmp_path)


@pytest.mark.parametrize(
    ("size", "grid", "token_dim"),
    [((5, 7), (2, 3), None), ((14, 14), (4, 4), 10), ((8, 6), (4, 4), 10), ((1, 2), (2, 3), 10)],
)
def test_equals_the_reference(size, grid, token_dim):
    layer = PoolingTokenizer(grid, token_dim)
    run_parity_test(layer, functools.partial(reference.pooling_tokenizer, grid=grid), random_inputs((*size, 6)))
    assert layer.compute_output_shape((None, *size, 6)) == (None, grid[0] * grid[1], token_dim or 6)


def test_nothing_is_learned_where_tokens_have_the_channels_of_pixels():
    [maps] = random_inputs((4, 6, 5))
    layer = PoolingTokenizer((2, 3), token_dim=5)
    assert_close(layer(maps), maps.reshape(2, 2, 2, 3, 2, 5).mean((2, 4)).reshape(2, 6, 5))
    assert not layer.weights
    assert layer.macs((None, 4, 6, 5)) == 0
    projecting = PoolingTokenizer((2, 3), 10)
    projecting.build((None, 5, 8, 6))
    assert projecting.macs((None, 5, 8, 6)) == 6 * 6 * 10
