import functools

import numpy as np
import pytest

from keras_vit.layers import TokenProjector
from tests.layers.convolutional.pointwise_convolution_test import projection_shapes
from tests.reference import visual_transformer as reference
from tests.test_case import assert_close, random_inputs, randomize, run_layer_test, run_parity_test, to_numpy

PUBLISHED = {"filters": 12, "num_heads": 3, "group_width": 6, "use_batch_norm": True, "scale_logits": True}
SHAPES = [(5, 7, 6), (4, 10)]


def built(layer, shapes=SHAPES):
    layer.build(*((None, *shape) for shape in shapes))
    return layer


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = projection_shapes("query", 6, 12, 2) | projection_shapes("key", 10, 12)
    shapes |= projection_shapes("value", 10, 12) | projection_shapes("lateral", 6, 12)
    cancelled = ["key/norm/beta"]  # It adds the same value to all tokens.
    run_layer_test(TokenProjector, PUBLISHED, SHAPES, (5, 7, 12), shapes, tmp_path, cancelled=cancelled)


@pytest.mark.parametrize("size", [(5, 7), (1, 3)])
def test_equals_the_equation(size):
    layer = TokenProjector()
    run_parity_test(layer, reference.token_projector, random_inputs((*size, 6), (4, 6)))
    assert layer.count_params() == 2 * 6 * 6


@pytest.mark.parametrize(
    ("changes", "channels", "token_dim"),
    [
        ({"num_heads": 1, "group_width": None}, 6, 10),
        ({"filters": None, "group_width": 3}, 12, 10),
        ({"use_batch_norm": False}, 6, 12),
        ({}, 12, 12),
    ],
)
def test_equals_the_published_form(changes, channels, token_dim):
    arguments = {**PUBLISHED, **changes}
    layer = TokenProjector(**arguments)
    equation = functools.partial(reference.token_projector, k=arguments["num_heads"], scale=True)
    run_parity_test(layer, equation, random_inputs((5, 7, channels), (4, token_dim)))
    assert (layer.value is None) == (token_dim == 12)
    assert (layer.lateral is None) == (channels == 12)


def test_every_pixel_shares_itself_out():
    layer = randomize(built(TokenProjector(**PUBLISHED)), scale=1.0)
    weights = to_numpy(layer.attention_weights(*random_inputs(*SHAPES)))
    assert weights.shape == (2, 3, 35, 4)
    assert_close(weights.sum(3), np.ones((2, 3, 35)))
    assert np.ptp(weights.sum(2)) > 0.01


def test_weights_of_zero_add_the_mean_of_the_tokens():
    maps, tokens = random_inputs((5, 7, 6), (4, 6))
    layer = built(TokenProjector(), [(5, 7, 6), (4, 6)])
    layer.set_weights([np.zeros((6, 6))] * 2)
    assert_close(layer(maps, tokens), maps + tokens.mean(1)[:, None, None])


def test_macs():
    layer = built(TokenProjector(**PUBLISHED))
    # Queries in two groups; the map itself; keys and values; products and sums.
    expected = 35 * 6 * 12 // 2 + 35 * 6 * 12 + 2 * 4 * 10 * 12 + 2 * 35 * 4 * 12
    assert layer.macs(*((None, *shape) for shape in SHAPES)) == expected


def test_refuses_what_does_not_fit():
    for arguments, message in (
        ({"filters": 12, "num_heads": 5}, "num_heads must divide the 12 channels. Received: num_heads=5"),
        ({"filters": 12, "group_width": 5}, "group_width must divide the 12 channels. Received: group_width=5"),
    ):
        with pytest.raises(ValueError, match=message):
            built(TokenProjector(**arguments))
