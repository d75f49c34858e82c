import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import RotaryConfig
from keras_vit.layers import MultiHeadSelfAttention, RotaryPositionEmbedding
from keras_vit.layers.transformer import attention
from keras_vit.layers.transformer.few_queries import attend
from tests.reference import vit as reference
from tests.test_case import (
    MIXED_POLICIES,
    assert_close,
    built,
    canonical_weights,
    compute,
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
ARGUMENTS = {"num_heads": 3, "dropout_rate": 0.1, "qk_norm": True, "layer_norm_epsilon": 1e-3}
ARGUMENTS |= {"relative_positions": False, "qkv_bias": "all", "inner_norm": False, "rotary": None}

AXIAL = RotaryConfig()
INTERLEAVED = RotaryConfig("axial", 50.0, "interleaved", "grid", (4, 7), 0.5, "xy")
MIXED = RotaryConfig("mixed", layout="interleaved", coordinates="grid")


def _positions(rotary, key_dim):
    """Positions of the class token and of 2 x 3 patches."""
    return RotaryPositionEmbedding(rotary, key_dim, 1)(np.zeros((1, 2, 3, 1), "float32"))


@pytest.mark.each_backend
def test_layer(tmp_path):
    run_layer_test(MultiHeadSelfAttention, ARGUMENTS, [(7, 12)], (7, 12), PROJECTIONS | NORMS, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "epsilon", "shape"),
    [
        ({}, 1e-6, (7, 12)),
        ({"relative_positions": True}, 1e-6, (5, 7, 12)),
        ({"relative_positions": True, "qk_norm": True}, 0.1, (7, 12)),
        ({"inner_norm": True, "qkv_bias": "no_key"}, 0.1, (5, 7, 12)),
        ({"inner_norm": True, "qkv_bias": "none"}, 0.1, (7, 12)),
    ],
)
def test_equals_the_equations(arguments, epsilon, shape):
    # Scaled up, so that the softmax is far from uniform.
    inputs = [3 * x for x in random_inputs(shape)]
    layer = MultiHeadSelfAttention(3, layer_norm_epsilon=epsilon, **arguments)
    run_parity_test(layer, functools.partial(reference.multi_head_self_attention, epsilon=epsilon), inputs)


@pytest.mark.parametrize(
    ("arguments", "num_queries"),
    [
        *(({}, 1), ({}, 5), ({"qk_norm": True}, 2), ({"qkv_bias": "none"}, 2)),
        ({"qkv_bias": "no_key", "inner_norm": True}, 2),
    ],
)
def test_queries_ask_in_place_of_the_tokens(arguments, num_queries):
    inputs = [3 * x for x in random_inputs((7, 12), (num_queries, 12))]
    run_parity_test(
        MultiHeadSelfAttention(3, **arguments),
        lambda tokens, queries, weights: reference.multi_head_self_attention(tokens, weights, queries),
        inputs,
    )


def test_kernels_start_xavier_uniform_over_the_whole_matrix():
    weights = canonical_weights(built(MultiHeadSelfAttention(4), (7, 96)))
    limit = np.sqrt(6 / (96 + 96))
    for path, value in weights.items():
        if path.endswith("bias"):
            assert not value.any(), path
        else:
            assert 0.99 * limit < np.abs(value).max() <= limit, path
            assert value.std() == pytest.approx(limit / np.sqrt(3), rel=0.02), path
    assert not np.allclose(weights["query/kernel"], weights["key/kernel"])
    assert not np.allclose(weights["key/kernel"], weights["value/kernel"])


# The queries are the first tokens, or all tokens.
@pytest.mark.parametrize(
    ("arguments", "num_queries"),
    [
        pytest.param({"rotary": AXIAL, "inner_norm": True}, None, marks=pytest.mark.each_backend),
        ({"rotary": AXIAL}, 1),
        ({"rotary": INTERLEAVED, "qk_norm": True, "qkv_bias": "no_key"}, 3),
        pytest.param({"rotary": MIXED, "qkv_bias": "none"}, 1, marks=pytest.mark.each_backend),
        ({"rotary": MIXED}, None),
    ],
)
def test_rotary_positions_equal_the_equations(arguments, num_queries):
    [tokens] = random_inputs((7, 36))
    layer = built(MultiHeadSelfAttention(3, **arguments), (7, 36))
    weights = canonical_weights(randomize(layer))
    queries = None if num_queries is None else tokens[:, :num_queries]
    found = compute(layer, [tokens, queries, None, _positions(arguments["rotary"], 12)])
    expected = reference.multi_head_self_attention(
        tokens.astype("float64"), weights, queries, rotary=arguments["rotary"], grid=(2, 3)
    )
    assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("rotary", [AXIAL, MIXED])
def test_rotary_positions_of_lines(rotary):
    [tokens] = random_inputs((5, 7, 36))
    layer = randomize(built(MultiHeadSelfAttention(3, rotary=rotary), (5, 7, 36)))
    positions = _positions(rotary, 12)
    assert_close(layer(tokens, positions=positions)[:, 4], to_numpy(layer(tokens[:, 4], positions=positions)))


@pytest.mark.parametrize("rotary", [AXIAL, MIXED])
@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_rotation_is_computed_in_float32(policy, rotary, monkeypatch):
    dtypes, rotate = [], attention.rotate
    monkeypatch.setattr(attention, "rotate", lambda *arrays: dtypes.append(arrays[1].dtype) or rotate(*arrays))
    layer = built(MultiHeadSelfAttention(3, rotary=rotary, dtype=policy))
    output = layer(random_inputs((7, 12))[0], positions=_positions(rotary, 4))
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    assert {keras.backend.standardize_dtype(dtype) for dtype in dtypes} == {"float32"}


def test_refuses_positions_that_do_not_fit():
    [tokens] = random_inputs((7, 12))
    expected = "must be the output of a .*RotaryPositionEmbedding with the same rotary and key_dim=4.* Received: rotary"
    for rotary, positions, received in (
        (AXIAL, None, "None"),
        (AXIAL, _positions(MIXED, 4), r"\(2, 7\)"),
        (AXIAL, _positions(AXIAL, 8), r"\(2, 7, 8\)"),
        (MIXED, _positions(AXIAL, 4), r"\(2, 7, 4\)"),
        (None, _positions(AXIAL, 4), r"\(2, 7, 4\)"),
    ):
        layer = MultiHeadSelfAttention(3, rotary=rotary)
        for queries in (None, tokens[:, :1]):
            with pytest.raises(ValueError, match=f"{expected}.*positions of shape {received}"):
                layer(tokens, queries, positions=positions)
    with pytest.raises(ValueError, match=r"relative_positions=True needs rotary=None. Received: rotary=RotaryConfig"):
        MultiHeadSelfAttention(3, relative_positions=True, rotary=AXIAL)
    with pytest.raises(ValueError, match=r"qkv_bias must be one of 'all', 'no_key', 'none'\. Received: True"):
        MultiHeadSelfAttention(3, qkv_bias=True)


@pytest.mark.parametrize("num_queries", [2, 7])  # With two queries, `attend` does not compute keys and values.
def test_dropout_acts_on_the_weights_in_training_only(num_queries):
    # All values are one, so the output is the sum of a row of attention weights: one, unless weights are dropped.
    layer = built(MultiHeadSelfAttention(3, dropout_rate=0.5))
    weights = {path: np.zeros_like(value) for path, value in canonical_weights(layer).items()}
    weights["value/bias"] += 1
    weights["output/kernel"] = np.eye(12).reshape(3, 4, 12)
    layer.set_weights(list(weights.values()))
    inputs = random_inputs((7, 12), (num_queries, 12))
    assert_close(attend(layer, *inputs, training=False), np.ones((2, num_queries, 12)))
    dropped = to_numpy(attend(layer, *inputs, training=True))
    kept = dropped * 7 / 2  # How many of the 7 equal weights were kept and doubled.
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-4)
    assert len(np.unique(np.round(kept))) > 2
    assert not np.allclose(dropped, to_numpy(attend(layer, *inputs, training=True)))


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
    layer, [tokens] = built(MultiHeadSelfAttention(3, dtype=policy)), random_inputs((7, 12))
    layer(tokens)
    assert keras.backend.standardize_dtype(layer.attention_weights(tokens).dtype) == "float32"
    assert dtypes == ["float32"] * 2


def test_refuses_shapes_that_do_not_fit():
    relative = MultiHeadSelfAttention(3, relative_positions=True)
    for build, message in (
        (lambda: built(MultiHeadSelfAttention(5)), r"multiple of num_heads.*\(None, 7, 12\).*num_heads=5"),
        (lambda: relative(*random_inputs((7, 12), (2, 12))), "queries must be None"),
        (lambda: relative.build((None, None, 12)), "the number of tokens must be known"),
    ):
        with pytest.raises(ValueError, match=message):
            build()


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
    rotated = built(MultiHeadSelfAttention(3, rotary=INTERLEAVED))
    positions = {rotated: _positions(INTERLEAVED, 4)}
    for layer, asking in ((plain, None), (plain, queries), (relative, None), (rotated, None), (rotated, tokens[:, :2])):
        weights = canonical_weights(randomize(layer))
        found = to_numpy(layer.attention_weights(tokens, asking, positions=positions.get(layer)))
        assert found.shape == (2, 3, 7 if asking is None else 2, 7)
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
        value = np.einsum("btd,dkh->btkh", tokens, weights["value/kernel"]) + weights["value/bias"]
        heads = np.einsum("bkts,bskh->btkh", found, value)
        expected = np.einsum("btkh,khd->btd", heads, weights["output/kernel"]) + weights["output/bias"]
        assert_close(layer(tokens, asking, positions=positions.get(layer)), expected)
