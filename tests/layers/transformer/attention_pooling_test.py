import functools

import numpy as np
import pytest

from keras_vit.layers import AttentionPooling
from tests.reference import vit as reference
from tests.test_case import (
    assert_close,
    built,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    run_parity_test,
    to_numpy,
)


@pytest.mark.each_backend
def test_layer(tmp_path):
    attention = {f"attention/{name}": (12, 3, 4) for name in ("query", "key", "value")}
    run_layer_test(
        AttentionPooling,
        {"num_heads": 3, "mlp_dim": 20, "mlp": "gelu_exact", "layer_norm_epsilon": 1e-5, "num_prefix_tokens": 2},
        [(7, 12)],
        (12,),
        {
            "probe": (1, 1, 12),
            **{f"{name}/kernel": shape for name, shape in attention.items()},
            **{f"{name}/bias": shape[1:] for name, shape in attention.items()},
            **{"attention/output/kernel": (3, 4, 12), "attention/output/bias": (12,)},
            **{"norm/gamma": (12,), "norm/beta": (12,)},
            **{"mlp/hidden/kernel": (12, 20), "mlp/hidden/bias": (20,)},
            **{"mlp/output/kernel": (20, 12), "mlp/output/bias": (12,)},
        },
        tmp_path,
    )


@pytest.mark.parametrize(
    ("mlp", "activation", "epsilon"),
    [("gelu_tanh", reference.gelu_tanh, 1e-6), ("gelu_exact", reference.gelu_exact, 0.5)],
)
def test_equals_the_equations(mlp, activation, epsilon):
    # Scaled up, so that the softmax is far from uniform.
    inputs = [3 * x for x in random_inputs((7, 12))]
    equation = functools.partial(reference.attention_pooling, activation=activation, epsilon=epsilon)
    run_parity_test(AttentionPooling(3, 20, mlp, epsilon), equation, inputs)


def test_prefix_tokens_are_not_pooled():
    layer = AttentionPooling(3, 20, num_prefix_tokens=2)
    inputs = [3 * x for x in random_inputs((7, 12))]
    run_parity_test(layer, lambda tokens, weights: reference.attention_pooling(tokens[:, 2:], weights), inputs)
    weights = to_numpy(layer.attention_weights(*inputs))
    np.testing.assert_array_equal(weights[..., :2], 0)
    plain = built(AttentionPooling(3, 20))
    plain.set_weights(layer.get_weights())
    assert_close(weights[..., 2:], to_numpy(plain.attention_weights(inputs[0][:, 2:])))
    assert layer.macs((None, 7, 12)) == plain.macs((None, 5, 12))


def test_probe_starts_xavier_uniform():
    # Flax initialises the probe of big_vision, (1, 1, D), with fan-in 1 and fan-out D.
    probe = canonical_weights(built(AttentionPooling(3, 20), (7, 960)))["probe"]
    limit = np.sqrt(6 / (1 + 960))
    assert 0.98 * limit < np.abs(probe).max() <= limit
    assert probe.std() == pytest.approx(limit / np.sqrt(3), rel=0.05)


def test_macs():
    # Query and output of one probe, keys and values of 7 tokens, both products of the attention, MLP of one token.
    expected = 2 * 144 + 7 * 2 * 144 + 2 * 7 * 12 + 2 * 12 * 20
    assert built(AttentionPooling(3, 20)).macs((None, 7, 12)) == expected


def test_attention_weights_are_those_of_the_probe():
    layer = randomize(built(AttentionPooling(3, 20)))
    [tokens] = random_inputs((7, 12))
    w = {name: value.astype("float64") for name, value in canonical_weights(layer).items()}
    query = np.einsum("d,dkh->kh", w["probe"][0, 0], w["attention/query/kernel"]) + w["attention/query/bias"]
    key = np.einsum("btd,dkh->btkh", tokens, w["attention/key/kernel"]) + w["attention/key/bias"]
    expected = reference.softmax(np.einsum("kh,btkh->bkt", query, key) / 2)  # Heads of 4 channels.
    assert_close(layer.attention_weights(tokens), expected[:, :, None])
