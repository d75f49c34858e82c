import functools

import numpy as np
import pytest

from keras_vit.layers import EncoderBlock
from tests.reference import vit as reference
from tests.test_case import (
    MIXED_POLICIES,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    run_parity_test,
    to_numpy,
)


def test_layer(tmp_path):
    projections = {f"attention/{name}": (12, 3, 4) for name in ("query", "key", "value")}
    run_layer_test(
        EncoderBlock,
        {
            "num_heads": 3,
            "mlp_dim": 20,
            "mlp": "gelu_exact",
            "layer_norm_epsilon": 1e-5,
            "dropout_rate": 0.1,
            "attention_dropout_rate": 0.2,
            "drop_path_rate": 0.3,
        },
        [(7, 12)],
        (7, 12),
        {f"{norm}/{part}": (12,) for norm in ("attention_norm", "mlp_norm") for part in ("gamma", "beta")}
        | {f"{name}/kernel": shape for name, shape in projections.items()}
        | {f"{name}/bias": shape[1:] for name, shape in projections.items()}
        | {"attention/output/kernel": (3, 4, 12), "attention/output/bias": (12,)}
        | {"mlp/hidden/kernel": (12, 20), "mlp/hidden/bias": (20,)}
        | {"mlp/output/kernel": (20, 12), "mlp/output/bias": (12,)},
        tmp_path,
    )


@pytest.mark.parametrize(("mlp", "gelu"), [("gelu_tanh", reference.gelu_tanh), ("gelu_exact", reference.gelu_exact)])
def test_equals_the_equations(mlp, gelu):
    block = EncoderBlock(3, 20, mlp=mlp)
    run_parity_test(block, functools.partial(reference.encoder_block, gelu=gelu), random_inputs((7, 12)))


def test_layer_norm_epsilon():
    # Tokens so alike that the epsilon decides: 1e-6 (the default), 1e-3 and none give quite different norms.
    inputs = [1e-3 * x for x in random_inputs((7, 12))]
    run_parity_test(EncoderBlock(3, 20), reference.encoder_block, inputs)
    larger = functools.partial(reference.encoder_block, epsilon=1e-3)
    run_parity_test(EncoderBlock(3, 20, layer_norm_epsilon=1e-3), larger, inputs)


@pytest.mark.parametrize("rates", [(0.5, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, 0.5), (0.0, 0.0, 0.0)])
def test_each_rate_acts_in_training_only(rates):
    names = ("dropout_rate", "attention_dropout_rate", "drop_path_rate")
    block, plain = _built(**dict(zip(names, rates, strict=True))), _built()
    [tokens] = random_inputs((7, 12), batch=8)
    expected = to_numpy(plain(tokens))
    np.testing.assert_array_equal(to_numpy(block(tokens)), expected)
    np.testing.assert_array_equal(to_numpy(block(tokens, training=False)), expected)
    assert np.allclose(to_numpy(block(tokens, training=True)), expected) == (not any(rates))


def test_dropout_acts_on_the_output_of_the_attention():
    block = EncoderBlock(3, 20, dropout_rate=0.5)
    block.build((None, 7, 12))
    weights = {path: np.zeros_like(value) for path, value in canonical_weights(block).items()}
    weights["attention/output/bias"] += 1
    block.set_weights(list(weights.values()))
    values = np.unique(to_numpy(block(np.zeros((2, 7, 12), "float32"), training=True)))
    np.testing.assert_array_equal(values, [0, 2])


def test_drop_path_drops_the_two_branches_independently():
    block = _built(drop_path_rate=0.5)
    [tokens] = random_inputs((7, 12), batch=1)
    tokens = np.repeat(tokens, 64, axis=0)  # The same image 64 times: only what is dropped differs.
    outputs = to_numpy(block(tokens, training=True))
    found = set()
    for scales in ((0, 0), (0, 2), (2, 0), (2, 2)):
        expected = reference.encoder_block(
            tokens[:1].astype("float64"), canonical_weights(block), scale_attention=scales[0], scale_mlp=scales[1]
        )
        found |= {(image, scales) for image in range(64) if np.allclose(outputs[image], expected[0], atol=1e-4)}
    assert len(found) == 64  # Every image is exactly one of the four cases,
    assert len({scales for _, scales in found}) == 4  # and all four occur.


@pytest.mark.parametrize("norm", ["attention_norm", "mlp_norm"])
@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_layer_norm_is_computed_in_float32(policy, norm):
    # Exact in 16 bits, but the squares exceed float16 (65504), and the mean lies between two numbers of bfloat16.
    tokens = np.random.default_rng(0).choice([0.0, 600.0, 604.0, 1000.0], (2, 7, 12))
    block = EncoderBlock(3, 20, dtype=policy)
    block.build((None, 7, 12))
    actual = to_numpy(getattr(block, norm)(tokens))
    rounding = 2.0**-9 if policy == "mixed_bfloat16" else 2.0**-12
    expected = reference.layer_norm(tokens, 1.0, 0.0)
    np.testing.assert_allclose(actual, expected, rtol=1.5 * rounding, atol=1.5 * rounding)


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_parts_take_over_the_precision(policy):
    block = EncoderBlock(3, 20, dtype=policy)
    assert {layer.dtype_policy.name for layer in block._flatten_layers()} == {policy}
    block.build((None, 7, 12))
    assert {layer.dtype_policy.name for layer in block._flatten_layers()} == {policy}


@pytest.mark.parametrize("name", ["dropout_rate", "attention_dropout_rate", "drop_path_rate"])
@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_refuses_an_impossible_rate(name, rate):
    with pytest.raises(ValueError, match=f"Received: .*{rate}"):
        _built(**{name: rate})


def _built(**arguments):
    block = EncoderBlock(3, 20, **arguments)
    block.build((None, 7, 12))
    return randomize(block)
