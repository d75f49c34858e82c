import functools

import numpy as np
import pytest

from keras_vit.layers import FilterTokenizer
from tests.layers.convolutional.pointwise_convolution_test import projection_shapes
from tests.reference import visual_transformer as reference
from tests.test_case import assert_close, random_inputs, randomize, run_layer_test, run_parity_test, to_numpy

PUBLISHED = {"token_dim": 10, "group_width": 2, "use_batch_norm": True, "scale_logits": True}


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = projection_shapes("value", 6, 6, 3) | projection_shapes("projection", 6, 10)
    shapes |= projection_shapes("filter", 6, 4)
    arguments = {"num_tokens": 4, **PUBLISHED}
    # The softmax over pixels cancels what a norm adds to all pixels.
    cancelled = ["filter/norm/beta"]
    run_layer_test(FilterTokenizer, arguments, [(5, 7, 6)], (4, 10), shapes, tmp_path, cancelled=cancelled)


@pytest.mark.parametrize("size", [(5, 7), (1, 3)])
def test_equals_the_equation(size):
    layer = FilterTokenizer(4)
    run_parity_test(layer, reference.filter_tokenizer, random_inputs((*size, 6)))
    assert layer.count_params() == 6 * 4


@pytest.mark.parametrize("changes", [{}, {"token_dim": None}, {"token_dim": 6, "group_width": None}])
def test_equals_the_published_form(changes):
    layer = FilterTokenizer(4, **{**PUBLISHED, **changes})
    run_parity_test(layer, functools.partial(reference.filter_tokenizer, scale=True), random_inputs((5, 7, 6)))
    assert (layer.value is None) == (layer.projection is None) == (changes.get("token_dim", 10) in (None, 6))


def test_weights_are_shares_of_the_pixels():
    [maps] = random_inputs((5, 7, 6))
    layer = FilterTokenizer(4, **PUBLISHED)
    layer.build(maps.shape)
    weights = to_numpy(randomize(layer, scale=1.0).attention_weights(maps))
    assert weights.shape == (2, 1, 35, 4)
    assert_close(weights.sum(2), np.ones((2, 1, 4)))
    assert np.ptp(weights.sum(3)) > 0.01


def test_filters_of_zero_take_the_mean():
    [maps] = random_inputs((5, 7, 6))
    layer = FilterTokenizer(4)
    layer.build(maps.shape)
    layer.set_weights([np.zeros((6, 4))])
    assert_close(layer(maps), np.tile(maps.mean((1, 2))[:, None], (1, 4, 1)))


def test_macs():
    layer = FilterTokenizer(4, **PUBLISHED)
    layer.build((None, 5, 7, 6))
    # The filters; the values in three groups of two channels; the weighted sums; the projection of the tokens.
    assert layer.macs((None, 5, 7, 6)) == 35 * 6 * 4 + 35 * 6 * 2 + 35 * 6 * 4 + 4 * 6 * 10
    plain = FilterTokenizer(4)
    plain.build((None, 5, 7, 6))
    assert plain.macs((None, 5, 7, 6)) == 2 * 35 * 6 * 4
