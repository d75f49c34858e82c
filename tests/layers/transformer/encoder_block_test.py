import functools

import keras
import numpy as np
import pytest

from keras_vit import RotaryConfig
from keras_vit.layers import EncoderBlock, MlpBlock, MultiHeadSelfAttention, RotaryPositionEmbedding
from tests.layers.transformer.blocks import encoder_block
from tests.reference import vit as reference
from tests.test_case import (
    MIXED_POLICIES,
    assert_close,
    built,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    run_parity_test,
    to_numpy,
)

WEIGHT_SHAPES = {
    **{f"{norm}/{part}": (12,) for norm in ("attention_norm", "mlp_norm") for part in ("gamma", "beta")},
    **{f"attention/{name}/kernel": (12, 3, 4) for name in ("query", "key", "value")},
    **{f"attention/{name}/bias": (3, 4) for name in ("query", "key", "value")},
    **{"attention/output/kernel": (3, 4, 12), "attention/output/bias": (12,)},
    **{
        "mlp/hidden/kernel": (12, 20),
        "mlp/hidden/bias": (20,),
        "mlp/output/kernel": (20, 12),
        "mlp/output/bias": (12,),
    },
}
SCALES = {"attention_scale/gamma": (12,), "mlp_scale/gamma": (12,)}
QUERY_KEY_NORMS = {f"attention/{name}_norm/{part}": (4,) for name in ("query", "key") for part in ("gamma", "beta")}
RELATIVE = {"attention/relative_position/embedding": (13, 4)}


@pytest.mark.each_backend
def test_layer(tmp_path):
    arguments = {"attention": functools.partial(MultiHeadSelfAttention, 3, 0.2, True, 1e-5, True, name="attention")}
    arguments |= {"mlp": functools.partial(MlpBlock, 20, "gelu_exact", 0.1, name="mlp"), "layer_norm_epsilon": 1e-5}
    arguments |= {"dropout_rate": 0.1, "drop_path_rate": 0.3, "layer_scale": 0.7, "block_norm": "pre"}
    shapes = WEIGHT_SHAPES | SCALES | QUERY_KEY_NORMS | RELATIVE
    run_layer_test(EncoderBlock, arguments, [(7, 12)], (7, 12), shapes, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "activation", "shape"),
    [
        ({"mlp": "quick_gelu", "layer_scale": 0.1}, reference.quick_gelu, (7, 12)),
        ({"mlp": "gelu_exact", "layer_norm_epsilon": 0.1, "qk_norm": True}, reference.gelu_exact, (5, 7, 12)),
        ({"block_norm": "post", "layer_scale": 0.1, "qkv_bias": "none"}, reference.gelu_tanh, (5, 7, 12)),
        ({"block_norm": "post", "mlp": "swiglu", "inner_norms": True}, reference.swiglu, (7, 12)),
        ({"relative_positions": True, "qk_norm": True, "qkv_bias": "no_key"}, reference.gelu_tanh, (7, 12)),
    ],
)
def test_equals_the_equations(arguments, activation, shape):
    block_norm, epsilon = arguments.get("block_norm", "pre"), arguments.get("layer_norm_epsilon", 1e-6)
    equation = functools.partial(reference.encoder_block, activation=activation, block_norm=block_norm, epsilon=epsilon)
    run_parity_test(encoder_block(**arguments), equation, random_inputs(shape))


@pytest.mark.parametrize("arguments", [{"block_norm": "post"}, {"layer_scale": 0.1, "inner_norms": True}])
def test_rotary_positions_equal_the_equations(arguments):
    rotary = RotaryConfig("axial", 10.0, "interleaved", "grid")
    positions = RotaryPositionEmbedding(rotary, 12, 1)(np.zeros((1, 2, 3, 1), "float32"))
    [tokens] = random_inputs((7, 36))
    block = built(encoder_block(rotary=rotary, **arguments), (7, 36))
    equation = functools.partial(reference.encoder_block, block_norm=arguments.get("block_norm", "pre"))
    expected = equation(tokens.astype("float64"), canonical_weights(randomize(block)), rotary=rotary, grid=(2, 3))
    assert_close(block(tokens, positions), expected)


def test_layer_scale_starts_both_branches_at_its_value():
    block = built(encoder_block(layer_scale=0.7))
    weights = canonical_weights(block)
    for path in SCALES:
        np.testing.assert_allclose(weights[path], np.full(12, 0.7), rtol=1e-6)
    [tokens] = random_inputs((7, 12))
    plain = {path: value for path, value in weights.items() if path not in SCALES}
    expected = reference.encoder_block(tokens.astype("float64"), plain, scale_attention=0.7, scale_mlp=0.7)
    assert_close(block(tokens), expected)


@pytest.mark.slow
def test_each_rate_acts_in_training_only():
    [tokens] = random_inputs((7, 12), batch=8)
    plain = randomize(built(encoder_block()))
    expected = to_numpy(plain(tokens))
    assert_close(plain(tokens, training=True), expected)
    for rate in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
        block = randomize(built(encoder_block(**{rate: 0.5})))
        np.testing.assert_array_equal(to_numpy(block(tokens)), expected)
        np.testing.assert_array_equal(to_numpy(block(tokens, training=False)), expected)
        assert not np.allclose(to_numpy(block(tokens, training=True)), expected), rate


def test_dropout_acts_on_the_output_of_the_attention():
    block = built(encoder_block(dropout_rate=0.5))
    weights = {path: np.zeros_like(value) for path, value in canonical_weights(block).items()}
    weights["attention/output/bias"] += 1
    block.set_weights(list(weights.values()))
    values = np.unique(to_numpy(block(np.zeros((2, 7, 12), "float32"), training=True)))
    np.testing.assert_array_equal(values, [0, 2])


def test_drop_path_drops_the_two_branches_independently():
    block = randomize(built(encoder_block(drop_path_rate=0.5)))
    [tokens] = random_inputs((7, 12), batch=1)
    tokens = np.repeat(tokens, 64, axis=0)  # The same image 64 times: only the dropped branches differ.
    outputs = to_numpy(block(tokens, training=True))
    found = set()
    for scales in ((0, 0), (0, 2), (2, 0), (2, 2)):
        expected = reference.encoder_block(
            tokens[:1].astype("float64"), canonical_weights(block), scale_attention=scales[0], scale_mlp=scales[1]
        )
        found |= {(image, scales) for image in range(64) if np.allclose(outputs[image], expected[0], atol=1e-4)}
    assert len(found) == 64  # Every image is exactly one of the four cases.
    assert len({scales for _, scales in found}) == 4  # All four cases occur.


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_layer_norm_is_computed_in_float32(policy):
    # The values are exact in 16 bits, but their squares exceed float16 (65504), and bfloat16 cannot represent the mean.
    tokens = np.random.default_rng(0).choice([0.0, 600.0, 604.0, 1000.0], (2, 7, 12))
    block = built(encoder_block(dtype=policy))
    rounding = 2.0**-9 if policy == "mixed_bfloat16" else 2.0**-12
    expected = reference.layer_norm(tokens, 1.0, 0.0)
    for norm in (block.attention_norm, block.mlp_norm):
        np.testing.assert_allclose(to_numpy(norm(tokens)), expected, rtol=1.5 * rounding, atol=1.5 * rounding)


def test_refuses_an_impossible_rate():
    for name in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
        with pytest.raises(ValueError, match=r"Received: .*1\.5"):
            built(encoder_block(**{name: 1.5}))


def test_macs():
    # MACs of the attention and of the MLP; scales and norms are not counted.
    block = built(encoder_block(mlp="swiglu", layer_scale=0.1, qk_norm=True))
    assert block.macs((None, 7, 12)) == (7 * 4 * 144 + 2 * 49 * 12) + 7 * (12 * 40 + 20 * 12)
    assert block.macs((None, 5, 7, 12)) == 5 * block.macs((None, 7, 12))


def test_attention_weights_are_of_the_normalised_tokens():
    block = randomize(built(encoder_block()))
    [tokens] = random_inputs((7, 12))
    weights = canonical_weights(block)
    normalised = reference.norm(tokens, weights, "attention_norm").astype("float32")
    assert_close(block.attention_weights(tokens), to_numpy(block.attention.attention_weights(normalised)))
    post = randomize(built(encoder_block(block_norm="post")))
    assert_close(post.attention_weights(tokens), to_numpy(post.attention.attention_weights(tokens)))


def test_refuses_impossible_parts():
    attention = MultiHeadSelfAttention(3)
    for parts, message in (
        ((3, 20), r"attention must be a layer, such as .*MultiHeadSelfAttention\(num_heads=3\). Received: 3"),
        ((attention, "gelu"), "mlp must be a layer, such as .*MlpBlock.* Received: 'gelu'"),
        ((attention, MlpBlock(20), 1e-6, 0.0, 0.0, None, "none"), "must be one of 'pre', 'post'. Received: 'none'"),
    ):
        with pytest.raises(ValueError, match=message):
            EncoderBlock(*parts)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs JAX's compiler")
def test_a_block_more_is_so_much_more_to_compute_however_many_there_are():
    # XLA on CPUs tends to recompute the gradients of the residual connections in each block.
    import jax

    def num_additions(num_blocks):
        blocks = [built(encoder_block()) for _ in range(num_blocks)]

        def loss(kernels, tokens):
            for block, values in zip(blocks, kernels, strict=True):
                tokens, _ = block.stateless_call(values, [], tokens, training=True)
            return keras.ops.sum(tokens**2)

        kernels = [[weight.value for weight in block.trainable_variables] for block in blocks]
        compiled = jax.jit(jax.grad(loss)).lower(kernels, *random_inputs((7, 12))).compile()
        return compiled.as_text().count(" add(")

    counts = [num_additions(num_blocks) for num_blocks in (2, 3, 4)]
    assert counts[2] - counts[1] == counts[1] - counts[0] > 0
