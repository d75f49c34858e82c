import functools

import numpy as np
import pytest

from keras_vit.layers import TokenTransformer
from tests.layers.convolutional.pointwise_convolution_test import projection_shapes
from tests.reference import visual_transformer as reference
from tests.test_case import assert_close, random_inputs, randomize, run_layer_test, run_parity_test, to_numpy

PUBLISHED = {"num_heads": 3, "num_groups": 2, "use_batch_norm": True, "scale_logits": True}


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = projection_shapes("key", 12, 6, 2) | projection_shapes("query", 12, 6, 2)
    shapes |= projection_shapes("value", 12, 12, 2)
    shapes |= projection_shapes("dense_1", 12, 12) | projection_shapes("dense_2", 12, 12)
    cancelled = ["query/norm/beta"]  # The softmax runs over the tokens that W_Q projects.
    run_layer_test(TokenTransformer, PUBLISHED, [(5, 12)], (5, 12), shapes, tmp_path, cancelled=cancelled)


@pytest.mark.parametrize("shape", [(5, 6), (1, 2)])
def test_equals_the_equations(shape):
    layer = TokenTransformer()
    run_parity_test(layer, reference.token_transformer, random_inputs(shape))
    dim = shape[1]
    assert layer.count_params() == 2 * dim * dim // 2 + 2 * dim * dim


@pytest.mark.parametrize("changes", [{}, {"num_groups": None, "use_batch_norm": False}])
def test_equals_the_published_form(changes):
    arguments = {**PUBLISHED, **changes}
    equation = functools.partial(reference.token_transformer, k=arguments["num_heads"], scale=True)
    run_parity_test(TokenTransformer(**arguments), equation, random_inputs((5, 12)))


def test_every_token_shares_itself_out():
    [tokens] = random_inputs((5, 12))
    layer = TokenTransformer(**PUBLISHED)
    layer.build(tokens.shape)
    weights = to_numpy(randomize(layer, scale=1.0).attention_weights(tokens))
    assert weights.shape == (2, 3, 5, 5)
    assert_close(weights.sum(3), np.ones((2, 3, 5)))
    assert np.ptp(weights.sum(2)) > 0.01


def test_weights_of_zero_add_the_mean():
    [tokens] = random_inputs((5, 12))
    layer = TokenTransformer()
    layer.build(tokens.shape)
    layer.set_weights([np.zeros(weight.shape) for weight in layer.weights])
    assert_close(layer(tokens), tokens + tokens.mean(1, keepdims=True))


def test_macs():
    layer = TokenTransformer(**PUBLISHED)
    layer.build((None, 5, 12))
    # Keys, queries and values in two groups; products and sums; two dense layers.
    expected = 5 * 12 * (6 + 6 + 12) // 2 + 25 * (6 + 12) + 2 * 5 * 12 * 12
    assert layer.macs((None, 5, 12)) == expected


def test_refuses_what_does_not_fit():
    for arguments, message in (
        ({"num_heads": 4}, "has 4 heads, .* must be a multiple of 8. Received: 12 channels"),
        ({"num_groups": 5}, "in 5 groups to half their channels.* multiple of 10. Received: 12 channels"),
    ):
        with pytest.raises(ValueError, match=message):
            TokenTransformer(**arguments).build((None, 5, 12))
