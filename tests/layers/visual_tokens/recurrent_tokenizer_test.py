import functools

import numpy as np
import pytest

from keras_vit.layers import RecurrentTokenizer
from tests.layers.convolutional.pointwise_convolution_test import projection_shapes
from tests.reference import visual_transformer as reference
from tests.test_case import assert_close, random_inputs, randomize, run_layer_test, run_parity_test, to_numpy

PUBLISHED = {"token_dim": 10, "num_heads": 3, "group_width": 2, "use_batch_norm": True, "scale_logits": True}
PUBLISHED |= {"split_tokens": True}
SHAPES = [(5, 7, 6), (4, 10)]


def built(layer, shapes=SHAPES):
    layer.build(*((None, *shape) for shape in shapes))
    return layer


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = projection_shapes("value", 6, 6, 3) | projection_shapes("projection", 6, 10)
    shapes |= projection_shapes("query", 10, 6) | projection_shapes("key", 6, 6, 3)
    cancelled = ["key/norm/beta"]  # It adds the same value to all pixels.
    run_layer_test(RecurrentTokenizer, PUBLISHED, SHAPES, (4, 10), shapes, tmp_path, 1.0, cancelled)


@pytest.mark.parametrize("size", [(5, 7), (1, 3)])
def test_equals_the_equation(size):
    layer = RecurrentTokenizer()
    run_parity_test(layer, reference.recurrent_tokenizer, random_inputs((*size, 6), (3, 6)))
    assert layer.count_params() == 6 * 6


@pytest.mark.parametrize(
    "changes", [{}, {"split_tokens": False, "token_dim": None}, {"group_width": None, "num_heads": 2}]
)
def test_equals_the_published_form(changes):
    arguments = {**PUBLISHED, **changes}
    equation = functools.partial(
        reference.recurrent_tokenizer, k=arguments["num_heads"], scale=True, split=arguments["split_tokens"]
    )
    inputs = random_inputs((5, 7, 6), (4, arguments["token_dim"] or 6))
    run_parity_test(RecurrentTokenizer(**arguments), equation, inputs)


def test_weights_are_shares_of_the_pixels():
    inputs = random_inputs(*SHAPES)
    for split, num_filters in ((True, 2), (False, 4)):
        layer = randomize(built(RecurrentTokenizer(**{**PUBLISHED, "split_tokens": split})))
        weights = to_numpy(layer.attention_weights(*inputs))
        assert weights.shape == (2, 3, 35, num_filters)
        assert_close(weights.sum(2), np.ones((2, 3, num_filters)))


def test_projection_of_zero_takes_the_mean():
    maps, tokens = random_inputs((5, 7, 6), (4, 6))
    layer = built(RecurrentTokenizer(), [(5, 7, 6), (4, 6)])
    layer.set_weights([np.zeros((6, 6))])
    assert_close(layer(maps, tokens), np.tile(maps.mean((1, 2))[:, None], (1, 4, 1)))


def test_macs():
    places = 5 * 7
    shapes = [(None, *shape) for shape in SHAPES]
    # Two query tokens; keys and values in three groups of two channels; products; sums; the projection of two tokens.
    expected = 2 * 10 * 6 + 2 * places * 6 * 2 + 2 * places * 6 * 2 + 2 * 6 * 10
    assert built(RecurrentTokenizer(**PUBLISHED)).macs(*shapes) == expected
    plain = built(RecurrentTokenizer(), [(5, 7, 6), (4, 6)])
    assert plain.macs((None, 5, 7, 6), (None, 4, 6)) == 4 * 6 * 6 + 2 * places * 6 * 4


def test_refuses_what_does_not_fit():
    for arguments, tokens_shape, message in (
        ({"num_heads": 4}, (4, 6), "num_heads must divide the 6 channels. Received: num_heads=4"),
        ({}, (4, 5), r"makes tokens of 6 channels, .* Received: tokens of shape \(None, 4, 5\)"),
        ({"group_width": 4}, (4, 6), "group_width must divide the 6 channels. Received: group_width=4"),
        ({"split_tokens": True}, (3, 6), "split_tokens needs a known, even number of tokens. Received: 3"),
    ):
        with pytest.raises(ValueError, match=message):
            built(RecurrentTokenizer(**arguments), [(5, 7, 6), tokens_shape])
