import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import MergingEncoderBlock, MlpBlock, MultiHeadSelfAttention, TokenMerging
from tests.layers.transformer.blocks import encoder_block
from tests.layers.transformer.encoder_block_test import WEIGHT_SHAPES
from tests.reference import token_merging as reference
from tests.test_case import assert_close, built, canonical_weights, random_inputs, randomize, run_layer_test, to_numpy


def _block(num_merged=2, num_prefix_tokens=1, **arguments):
    return encoder_block(merging=TokenMerging(num_merged, num_prefix_tokens), **arguments)


def test_layer(tmp_path):
    arguments = {"attention": functools.partial(MultiHeadSelfAttention, 3, 0.2, name="attention")}
    arguments |= {"mlp": functools.partial(MlpBlock, 20, "gelu_exact", 0.1, name="mlp")}
    arguments |= {"merging": functools.partial(TokenMerging, 2, 1), "layer_norm_epsilon": 1e-5, "dropout_rate": 0.1}
    arguments |= {"drop_path_rate": 0.3, "layer_scale": None, "block_norm": "post"}
    run_layer_test(MergingEncoderBlock, arguments, [(7, 12)], (5, 12), WEIGHT_SHAPES, tmp_path)


@pytest.mark.parametrize("arguments", [{}, {"layer_scale": 0.1, "qk_norm": True}])
def test_equals_the_equations(arguments):
    block = _block(**arguments)
    [tokens] = random_inputs((9, 12))
    sizes = np.random.default_rng(1).integers(1, 6, (2, 9)).astype("int32")
    block(tokens)
    weights = canonical_weights(randomize(block))
    for given in (None, sizes):
        expected, expected_sizes = reference.encoder_block(
            tokens.astype("float64"), np.ones((2, 9)) if given is None else given.astype("float64"), weights, 2, 1
        )
        left, sizes_left = block(tokens) if given is None else block(tokens, given)
        assert_close(left, expected)
        np.testing.assert_array_equal(to_numpy(sizes_left), expected_sizes)


def test_attention_of_merged_tokens():
    """A token that represents three patches is attended to like three equal tokens."""
    block = randomize(built(_block(num_merged=1)))
    [tokens] = random_inputs((4, 12))
    expected = to_numpy(block.attention_weights(np.repeat(tokens, [1, 3, 1, 2], axis=1)))[:, :, [0, 1, 4, 5]]
    expected = np.add.reduceat(expected, [0, 1, 4, 5], axis=-1)
    assert_close(block.attention_weights(tokens, np.array([[1, 3, 1, 2]] * 2)), expected)


def test_macs():
    # The MLP receives two tokens fewer. Three tokens are compared with three, and two are added to three.
    matching = 3 * 3 * 4 + 3 * 2 * 12
    expected = (7 * 4 * 144 + 2 * 49 * 12) + matching + 5 * (12 * 20 + 20 * 12)
    assert built(_block()).macs((None, 7, 12)) == expected


def test_refuses_attention_without_keys_to_compare():
    relative, rotary = MultiHeadSelfAttention(3, relative_positions=True), keras_vit.RotaryConfig()
    for attention in (relative, MultiHeadSelfAttention(3, rotary=rotary), keras.layers.Identity()):
        with pytest.raises(ValueError, match=r"without relative and rotary positions\. Received: attention=<"):
            MergingEncoderBlock(attention, MlpBlock(20), TokenMerging(2))


def test_refuses_lines_of_tokens_and_a_number_for_the_merging():
    with pytest.raises(ValueError, match=r"one sequence for each image.*of shape \(2, 5, 7, 12\)"):
        _block()(*random_inputs((5, 7, 12)))
    with pytest.raises(ValueError, match=r"merging must be a layer, such as .*TokenMerging.* Received: 2"):
        encoder_block(merging=2)
