import keras
import numpy as np
import pytest

from keras_vit.layers import TokenMerging
from keras_vit.layers.transformer.first_tokens import can_compute_first, first_tokens
from tests.layers.transformer.blocks import encoder_block
from tests.test_case import assert_close, built, random_inputs, randomize, to_numpy


@pytest.mark.parametrize("arguments", [{}, {"layer_scale": 0.1, "qk_norm": True, "mlp": "swiglu"}])
def test_only_the_first_tokens(arguments):
    block = randomize(built(encoder_block(**arguments)))
    [tokens] = random_inputs((7, 12))
    whole = to_numpy(block(tokens))
    for count in (1, 2, 7):
        assert_close(first_tokens(block, tokens, num_outputs=count), whole[:, :count])
        assert first_tokens(block, keras.KerasTensor((None, 7, 12)), num_outputs=count).shape == (None, count, 12)


@pytest.mark.parametrize("given", [False, True])
def test_only_the_first_of_merged_tokens(given):
    block = randomize(built(encoder_block(merging=TokenMerging(2, num_prefix_tokens=2))))
    [tokens] = random_inputs((7, 12))
    sizes = [np.array([[1, 1, 3, 1, 2, 1, 1]] * 2)] if given else []
    whole = to_numpy(block(tokens, *sizes)[0])
    first, sizes = first_tokens(block, tokens, *sizes, num_outputs=2)
    assert_close(first, whole[:, :2])
    np.testing.assert_array_equal(to_numpy(sizes), np.ones((2, 2)))


@pytest.mark.parametrize(
    ("arguments", "number", "tokens_shape", "expected"),
    [
        ({}, 2, (None, 7, 12), True),
        ({}, 2, (None, 5, 7, 12), False),
        ({"relative_positions": True}, 1, (None, 7, 12), False),
        ({"merging": 1}, 1, (None, 7, 12), True),
        ({"merging": 1}, 2, (None, 7, 12), False),  # The second token may be merged.
    ],
)
def test_whether_they_can_be_computed(arguments, number, tokens_shape, expected):
    merging = {"merging": TokenMerging(2, num_prefix_tokens=1)} if "merging" in arguments else {}
    assert can_compute_first(encoder_block(**arguments | merging), number, tokens_shape) == expected


def test_not_of_layers_of_other_kinds():
    class Other(type(encoder_block())):
        """A user's own block."""

    block = encoder_block()
    assert not can_compute_first(Other(block.attention, block.mlp_block), 1, (None, 7, 12))
    other = type(block)(keras.layers.Identity(), block.mlp_block)
    assert not can_compute_first(other, 1, (None, 7, 12))
