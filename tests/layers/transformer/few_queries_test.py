import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import RotaryConfig
from keras_vit.layers import MultiHeadSelfAttention, RotaryPositionEmbedding, TokenMerging
from keras_vit.layers.transformer.few_queries import attend, can_compute_first, can_skip_keys, first_tokens
from tests.layers.transformer.blocks import encoder_block
from tests.reference import vit as reference
from tests.test_case import (
    TENSORFLOW,
    assert_close,
    built,
    canonical_weights,
    quantize,
    random_inputs,
    randomize,
    to_numpy,
)


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


# Keys and values are not computed for one or two queries. They are computed for five queries.
@pytest.mark.parametrize(
    ("arguments", "num_queries"),
    [
        *(({}, 1), ({}, 5), ({"qk_norm": True}, 2), ({"qkv_bias": "none"}, 2)),
        ({"qkv_bias": "no_key", "inner_norm": True}, 2),
    ],
)
def test_attend_equals_the_equations(arguments, num_queries):
    layer = randomize(built(MultiHeadSelfAttention(3, **arguments)))
    tokens, queries = [3 * x for x in random_inputs((7, 12), (num_queries, 12))]
    inputs = tokens.astype("float64"), canonical_weights(layer), queries.astype("float64")
    assert_close(attend(layer, tokens, queries), reference.multi_head_self_attention(*inputs))


def test_few_queries_need_no_keys_and_values(monkeypatch):
    rotary, shapes, matmul = RotaryConfig(), [], ops.matmul
    positions = RotaryPositionEmbedding(rotary, 4, 1)(np.zeros((1, 2, 3, 1), "float32"))
    monkeypatch.setattr(
        ops, "matmul", lambda *arrays: shapes.append([tuple(x.shape) for x in arrays]) or matmul(*arrays)
    )
    for arguments, num_queries, expected in (
        *(({}, 2, 0), ({}, 3, 2)),
        *(({"qk_norm": True}, 2, 2), ({"rotary": rotary}, 2, 2)),
    ):
        layer, inputs = built(MultiHeadSelfAttention(3, **arguments)), random_inputs((7, 12), (num_queries, 12))
        shapes.clear()
        attend(layer, *inputs, positions=positions if "rotary" in arguments else None)
        # Projections of all tokens of both images.
        assert shapes.count([(14, 12), (12, 12)]) == expected, (arguments, num_queries)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_few_queries_count_tokens_as_often_as_others_do(policy):
    layer = randomize(built(MultiHeadSelfAttention(3, dtype=policy)))
    [tokens] = random_inputs((7, 12))
    sizes = np.random.default_rng(0).integers(1, 5, (2, 7))
    expected = layer(tokens, sizes=sizes)
    found = attend(layer, tokens, tokens[:, :2], sizes=sizes)
    assert not np.allclose(to_numpy(found), to_numpy(attend(layer, tokens, tokens[:, :2])), atol=0.05)
    tolerance = 1e-5 if policy == "float32" else 2e-2  # A few bfloat16 roundings of numbers up to 1.
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected)[:, :2], rtol=0, atol=tolerance)


# Relative to the largest output: a few roundings of half a unit in the last place each.
@pytest.mark.slow
@pytest.mark.parametrize(("policy", "tolerance"), [("mixed_bfloat16", 2**-7), ("mixed_float16", 2**-10)])
def test_few_queries_are_as_exact_as_others_in_16_bits(policy, tolerance):
    if policy == "mixed_float16" and not TENSORFLOW:
        pytest.skip("float16 products need TensorFlow on a CPU")
    layer = randomize(built(MultiHeadSelfAttention(6, dtype=policy), (50, 192)), scale=0.05)
    plain = built(MultiHeadSelfAttention(6), (50, 192))
    plain.set_weights(layer.get_weights())
    [tokens] = random_inputs((50, 192))
    tokens[..., :2] *= 20  # In trained models, a few channels are larger than the other channels.
    expected = to_numpy(plain(tokens))[:, :1]
    few, all_of_them = to_numpy(attend(layer, tokens, tokens[:, :1])), to_numpy(layer(tokens))[:, :1]
    error, usual = np.abs(few - expected).mean(), np.abs(all_of_them - expected).mean()
    assert error < 2 * usual
    assert error < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("shape", [(7, 12), (5, 7, 12)])
def test_few_queries_of_lines_and_in_float64(shape):
    layer = randomize(built(MultiHeadSelfAttention(3, dtype="float64"), shape))
    [tokens] = random_inputs(shape)
    queries = tokens[..., :1, :]
    assert_close(attend(layer, tokens, queries), to_numpy(layer(tokens))[..., :1, :])


@pytest.mark.slow
def test_few_queries_of_a_layer_in_8_bits():
    layer = randomize(built(MultiHeadSelfAttention(3)))
    inputs = random_inputs((7, 12), (2, 12))
    expected = to_numpy(attend(layer, *inputs))
    assert can_skip_keys(layer, inputs[1])
    quantize(layer.key, "int8")
    quantize(layer.value, "int8")
    assert not can_skip_keys(layer, inputs[1])
    np.testing.assert_allclose(to_numpy(attend(layer, *inputs)), expected, rtol=0, atol=0.02)
