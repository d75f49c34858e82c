import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import MultiHeadSelfAttention
from tests.reference import vit as reference
from tests.test_case import (
    MIXED_POLICIES,
    TENSORFLOW,
    assert_close,
    built,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    run_parity_test,
    to_numpy,
)

PROJECTIONS = {
    **{f"{name}/kernel": (12, 3, 4) for name in ("query", "key", "value")},
    **{f"{name}/bias": (3, 4) for name in ("query", "key", "value")},
    **{"output/kernel": (3, 4, 12), "output/bias": (12,)},
}
NORMS = {f"{name}_norm/{part}": (4,) for name in ("query", "key") for part in ("gamma", "beta")}
RELATIVE = {"relative_position/embedding": (13, 4)}
ARGUMENTS = {
    "num_heads": 3,
    "dropout_rate": 0.1,
    "qk_norm": True,
    "layer_norm_epsilon": 1e-3,
    "relative_positions": False,
    "qkv_bias": "all",
    "inner_norm": False,
    "rotary": None,
}


@pytest.mark.each_backend
def test_layer(tmp_path):
    run_layer_test(MultiHeadSelfAttention, ARGUMENTS, [(7, 12)], (7, 12), PROJECTIONS | NORMS, tmp_path)


def test_layer_of_lines_with_relative_positions_and_without_norms(tmp_path):
    arguments = {**ARGUMENTS, "relative_positions": True, "qk_norm": False}
    weights = PROJECTIONS | RELATIVE
    run_layer_test(MultiHeadSelfAttention, arguments, [(5, 7, 12)], (5, 7, 12), weights, tmp_path)


def test_layer_with_queries(tmp_path):
    run_layer_test(MultiHeadSelfAttention, ARGUMENTS, [(7, 12), (2, 12)], (2, 12), PROJECTIONS | NORMS, tmp_path)


@pytest.mark.parametrize(
    ("qk_norm", "relative_positions", "shape"),
    [
        (False, False, (7, 12)),
        (False, True, (5, 7, 12)),
        (True, False, (5, 7, 12)),
        (True, True, (7, 12)),
        (True, True, (5, 7, 12)),
    ],
)
def test_equals_the_equations(qk_norm, relative_positions, shape):
    # Scaled up, so that the softmax is far from uniform.
    inputs = [3 * x for x in random_inputs(shape)]
    layer = MultiHeadSelfAttention(3, qk_norm=qk_norm, relative_positions=relative_positions)
    run_parity_test(layer, reference.multi_head_self_attention, inputs)


# Keys and values are not computed for one or two queries. They are computed for five queries.
@pytest.mark.parametrize("num_queries", [1, 2, 5])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_queries_ask_in_place_of_the_tokens(qk_norm, num_queries):
    inputs = [3 * x for x in random_inputs((7, 12), (num_queries, 12))]
    run_parity_test(
        MultiHeadSelfAttention(3, qk_norm=qk_norm),
        lambda tokens, queries, weights: reference.multi_head_self_attention(tokens, weights, queries),
        inputs,
    )


@pytest.mark.parametrize(
    ("arguments", "num_queries", "expected"),
    [({}, 2, 0), ({}, 3, 2), ({"qk_norm": True}, 2, 2)],
)
def test_few_queries_need_no_keys_and_values(arguments, num_queries, expected, monkeypatch):
    layer = built(MultiHeadSelfAttention(3, **arguments))
    [tokens, queries] = random_inputs((7, 12), (num_queries, 12))
    shapes, matmul = [], ops.matmul
    monkeypatch.setattr(
        ops, "matmul", lambda *arrays: shapes.append([tuple(x.shape) for x in arrays]) or matmul(*arrays)
    )
    layer(tokens, queries)
    assert shapes.count([(14, 12), (12, 12)]) == expected  # Projections of all tokens of both images.


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_few_queries_count_tokens_as_often_as_others_do(policy):
    layer = randomize(built(MultiHeadSelfAttention(3, dtype=policy)))
    [tokens] = random_inputs((7, 12))
    sizes = np.random.default_rng(0).integers(1, 5, (2, 7))
    expected = layer(tokens, sizes=sizes)
    found = layer(tokens, tokens[:, :2], sizes=sizes)
    assert not np.allclose(to_numpy(found), to_numpy(layer(tokens, tokens[:, :2])), atol=0.05)
    tolerance = 1e-5 if policy == "float32" else 2e-2  # A few bfloat16 roundings of numbers up to 1.
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected)[:, :2], rtol=0, atol=tolerance)


# Relative to the largest output: a few roundings of half a unit in the last place each.
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
    few, all_of_them = to_numpy(layer(tokens, tokens[:, :1])), to_numpy(layer(tokens))[:, :1]
    error, usual = np.abs(few - expected).mean(), np.abs(all_of_them - expected).mean()
    assert error < 2 * usual
    assert error < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("shape", [(7, 12), (5, 7, 12)])
def test_few_queries_of_lines_and_in_float64(shape):
    layer = randomize(built(MultiHeadSelfAttention(3, dtype="float64"), shape))
    [tokens] = random_inputs(shape)
    queries = tokens[..., :1, :]
    assert_close(layer(tokens, queries), to_numpy(layer(tokens))[..., :1, :])


def test_few_queries_of_a_layer_in_8_bits():
    layer = randomize(built(MultiHeadSelfAttention(3)))
    inputs = random_inputs((7, 12), (2, 12))
    expected = to_numpy(layer(*inputs))
    layer.key.quantize("int8")
    layer.value.quantize("int8")
    np.testing.assert_allclose(to_numpy(layer(*inputs)), expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3])
def test_epsilon_is_that_of_the_norms(epsilon):
    # The tokens are so similar that epsilon matters: 1e-6 (the default), 1e-3 and 0 give quite different weights.
    [tokens] = [1e-3 * x for x in random_inputs((7, 12))]
    layer = built(MultiHeadSelfAttention(3, qk_norm=True, layer_norm_epsilon=epsilon))
    weights = canonical_weights(layer)
    weights["value/kernel"] *= 1000
    layer.set_weights(list(weights.values()))
    assert_close(layer(tokens), reference.multi_head_self_attention(tokens.astype("float64"), weights, epsilon=epsilon))


def test_kernels_start_xavier_uniform_over_the_whole_matrix():
    layer = built(MultiHeadSelfAttention(4), (7, 96))
    limit = np.sqrt(6 / (96 + 96))
    for path, value in canonical_weights(layer).items():
        if path.endswith("bias"):
            assert not value.any(), path
        else:
            assert 0.99 * limit < np.abs(value).max() <= limit, path
            assert value.std() == pytest.approx(limit / np.sqrt(3), rel=0.02), path


def test_each_kernel_has_its_own_draw():
    weights = canonical_weights(built(MultiHeadSelfAttention(3)))
    assert not np.allclose(weights["query/kernel"], weights["key/kernel"])
    assert not np.allclose(weights["key/kernel"], weights["value/kernel"])


def test_every_token_depends_on_every_other():
    layer = randomize(built(MultiHeadSelfAttention(3)))
    [tokens] = random_inputs((7, 12))
    changed = tokens.copy()
    changed[:, 4, 0] += 1.0
    difference = np.abs(to_numpy(layer(changed)) - to_numpy(layer(tokens))).max(-1)
    assert (difference > 1e-4).all()


@pytest.mark.parametrize("num_queries", [2, 7])
def test_dropout_acts_on_the_weights_in_training_only(num_queries):
    # All values are one, so the output is the sum of a row of attention weights: one, unless weights are dropped.
    layer = built(MultiHeadSelfAttention(3, dropout_rate=0.5))
    weights = {path: np.zeros_like(value) for path, value in canonical_weights(layer).items()}
    weights["value/bias"] += 1
    weights["output/kernel"] = np.eye(12).reshape(3, 4, 12)
    layer.set_weights(list(weights.values()))
    inputs = random_inputs((7, 12), (num_queries, 12))
    assert_close(layer(*inputs, training=False), np.ones((2, num_queries, 12)))
    dropped = to_numpy(layer(*inputs, training=True))
    kept = dropped * 7 / 2  # How many of the 7 equal weights were kept and doubled.
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-4)
    assert len(np.unique(np.round(kept))) > 2
    assert not np.allclose(dropped, to_numpy(layer(*inputs, training=True)))


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_softmax_is_as_exact_as_float32(policy):
    # One head with one-hot tokens, keys and values: the output is the matrix of attention weights. The logits are exact
    # in 16 bits (multiples of 1/64; the scale is 1/8).
    logits = np.random.default_rng(0).integers(-128, 129, (64, 64)) / 64
    layer = built(MultiHeadSelfAttention(1, dtype=policy), (64, 64))
    identity, zeros = np.eye(64), np.zeros((1, 64))
    layer.set_weights(
        [8 * logits[:, None], zeros, identity[:, None], zeros, identity[:, None], zeros, identity[None], np.zeros(64)]
    )
    weights = to_numpy(layer(identity[None]))[0]
    rounding = 2.0**-9 if policy == "mixed_bfloat16" else 2.0**-12  # Half a unit in the last place.
    np.testing.assert_allclose(weights, reference.softmax(logits), rtol=2.2 * rounding)


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_softmax_is_given_float32(policy, monkeypatch):
    # TensorFlow's bfloat16 kernel is exact on CPUs only, where it would hide a missing cast.
    dtypes = []
    softmax = ops.softmax
    monkeypatch.setattr(
        ops, "softmax", lambda x, axis=-1: dtypes.append(keras.backend.standardize_dtype(x.dtype)) or softmax(x, axis)
    )
    built(MultiHeadSelfAttention(3, dtype=policy))(random_inputs((7, 12))[0])
    assert set(dtypes) == {"float32"}


def test_refuses_a_width_that_the_heads_do_not_divide():
    with pytest.raises(ValueError, match=r"multiple of num_heads.*\(2, 7, 12\).*num_heads=5"):
        MultiHeadSelfAttention(5)(np.zeros((2, 7, 12), "float32"))


@pytest.mark.parametrize("num_heads", [0, -3, 3.0, True, None])
def test_refuses_an_impossible_number_of_heads(num_heads):
    with pytest.raises(ValueError, match=f"num_heads must be a positive integer. Received: {num_heads}"):
        MultiHeadSelfAttention(num_heads)


def test_refuses_relative_positions_of_other_queries():
    layer = MultiHeadSelfAttention(3, relative_positions=True)
    with pytest.raises(ValueError, match="queries must be None"):
        layer(*random_inputs((7, 12), (2, 12)))
    with pytest.raises(ValueError, match="the number of tokens must be known"):
        MultiHeadSelfAttention(3, relative_positions=True).build((None, None, 12))


def test_macs():
    # 7 tokens through four 12 x 12 matrices, and two products of the attention of 7 x 7 x 12 each.
    layer = built(MultiHeadSelfAttention(3))
    assert layer.macs((None, 7, 12)) == 7 * 4 * 144 + 2 * 49 * 12
    assert layer.macs((None, 5, 7, 12)) == 5 * layer.macs((None, 7, 12))
    # One more such product: each query with the row of its distance to each key.
    relative = built(MultiHeadSelfAttention(3, relative_positions=True))
    assert relative.macs((None, 7, 12)) == 7 * 4 * 144 + 3 * 49 * 12


def test_attention_weights_are_those_that_call_uses():
    """If values and output projection pass everything on, the output is the sum of weights x v over the heads."""
    plain = built(MultiHeadSelfAttention(3, qk_norm=True))
    relative = built(MultiHeadSelfAttention(3, relative_positions=True))
    [tokens, queries] = [3 * x for x in random_inputs((7, 12), (2, 12))]
    for layer, asking in ((plain, None), (plain, queries), (relative, None)):
        weights = canonical_weights(randomize(layer))
        found = to_numpy(layer.attention_weights(tokens, asking))
        assert found.shape == (2, 3, 7 if asking is None else 2, 7)
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
        value = np.einsum("btd,dkh->btkh", tokens, weights["value/kernel"]) + weights["value/bias"]
        heads = np.einsum("bkts,bskh->btkh", found, value)
        expected = np.einsum("btkh,khd->btd", heads, weights["output/kernel"]) + weights["output/bias"]
        assert_close(layer(tokens, asking), expected)


@pytest.mark.parametrize("policy", ["float32", *MIXED_POLICIES])
def test_attention_weights_are_float32(policy):
    layer = built(MultiHeadSelfAttention(3, dtype=policy))
    weights = layer.attention_weights(random_inputs((7, 12))[0])
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
