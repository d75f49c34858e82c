"""Attention equals the equations, written in NumPy in float64, and closed forms."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import RotaryConfig
from keras_vit.analysis import attention
from tests.models.tiny import SHAPE, STEM, tiny_model
from tests.reference import bit_resnet
from tests.reference import vit as reference
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, slow_except

ROTATED = {"hidden_dim": 36, "input_shape": (12, 15, 3)}  # Heads of 12 channels, 3 x 5 patches.
MODELS = [
    {},
    {"pooling": "avg", "num_layers": 1, "class_token": True, "num_register_tokens": 2},
    {"pooling": "map", "num_layers": 1, "num_register_tokens": 4, "norm_placement": "after_pooling"},
    {"distillation_token": True, "num_layers": 1, "num_register_tokens": 2},
    {"pre_norm": True, "num_layers": 1, "qk_norm": True, "layer_scale": 0.1, "norm_placement": "after_pooling"},
    {"include_top": False, "num_layers": 1, "pooling": None, "class_token": False, "position_embedding": "sincos_2d"},
    {"pooling": "avg", "num_layers": 1, "class_token": True, "pool_prefix_tokens": True, "qkv_bias": "none"},
    {
        **{"pooling": "map", "num_register_tokens": 2, "pool_prefix_tokens": True, "pooling_num_heads": 2},
        **{"block_norm": "post"},
    },
    {"rotary": RotaryConfig(), "num_layers": 1, "num_register_tokens": 2, "position_embedding": "none", **ROTATED},
    {"rotary": RotaryConfig("mixed", coordinates="grid"), "pooling": "avg", "position_embedding": "none", **ROTATED},
    {"stem": STEM, "num_layers": 1, "patch_size": (1, 2), "input_shape": (32, 64, 3)},
]


def _attention(asking, z, w, rotary=None, grid=None):
    """ViT, eq. 6, computed head by head: (B, K, t, T)."""
    heads = []
    for head in range(w["query/kernel"].shape[1]):
        q, k = reference.queries_and_keys(z, w, head, asking, rotary=rotary, grid=grid)
        heads.append(reference.softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])))
    return np.stack(heads, axis=1)


def _expected(model, images, changes):
    """Attention (B, L, K, T, T), and the tokens (B, T, D) that the pooling gets."""
    w = canonical_weights(model)
    x = images.astype("float64")
    if "stem" in changes:
        x = bit_resnet.bit_resnet(x, w, STEM.stage_depths)
    z = reference.embed(x, w, changes.get("position_embedding", "learned_1d"))
    if "pre_norm/gamma" in w:
        z = reference.norm(z, w, "pre_norm")
    maps = []
    block_norm, rotary, grid = changes.get("block_norm", "pre"), changes.get("rotary"), reference.grid_of(x, w)
    for i in range(changes.get("num_layers", 2)):
        block = reference.part(w, f"encoder_block_{i}")
        inputs = reference.norm(z, block, "attention_norm") if block_norm == "pre" else z
        maps.append(_attention(inputs, inputs, reference.part(block, "attention"), rotary, grid))
        z = reference.encoder_block(z, block, block_norm=block_norm, rotary=rotary, grid=grid)
    return np.stack(maps, axis=1), reference.norm(z, w, "encoder_norm") if "encoder_norm/gamma" in w else z


def _rollout(maps, first_rows, grid):
    """Abnar & Zuidema, applied as in ViT's figure 6; `first_rows` (B, T) selects or mixes the rows of the product."""
    with_residual = maps.mean(2) + np.eye(maps.shape[-1])
    layers = with_residual / with_residual.sum(-1, keepdims=True)
    rollout = np.broadcast_to(np.eye(maps.shape[-1]), layers[:, 0].shape)
    for layer in range(layers.shape[1]):
        rollout = layers[:, layer] @ rollout
    patches = np.einsum("bt,bts->bs", first_rows, rollout)[:, -grid[0] * grid[1] :].reshape(-1, *grid)
    return patches / patches.max((1, 2), keepdims=True)


def _first_rows(model, tokens, changes, num_patches):
    rows = np.zeros(tokens.shape[:2])
    num_pooled = tokens.shape[1] if changes.get("pool_prefix_tokens") else num_patches
    if changes.get("pooling") == "map":
        w = reference.part(canonical_weights(model), "pooling")
        probe = np.broadcast_to(w["probe"], (len(tokens), *w["probe"].shape[1:]))
        pooled = tokens[:, -num_pooled:]
        rows[:, -num_pooled:] = _attention(probe, pooled, reference.part(w, "attention")).mean(1)[:, 0]
    elif changes.get("pooling") == "avg" or changes.get("class_token") is False:
        rows[:, -num_pooled:] = 1 / num_pooled
    else:
        rows[:, 0] = 1
    return rows


def test_rows_of_some_tokens(model):
    [images] = random_inputs(SHAPE)
    maps = keras_vit.attention_maps(model, images)
    assert_close(keras_vit.attention_maps(model, images, queries=[2, 0]), maps[..., [2, 0], :])


@pytest.mark.parametrize("number", slow_except([2, 5, 6], range(len(MODELS))))
def test_equal_the_equations(number):
    changes = MODELS[number]
    shape = changes.get("input_shape", SHAPE)
    model = randomize(tiny_model(**changes))
    [images] = random_inputs(shape)
    maps, tokens = _expected(model, images, changes)
    assert_close(keras_vit.attention_maps(model, images), maps)
    grid = model.get_layer("patch_embedding").output.shape[1:3]
    rollout = keras_vit.attention_rollout(model, images)
    assert rollout.shape == (2, *grid)
    assert_close(rollout, _rollout(maps, _first_rows(model, tokens, changes, grid[0] * grid[1]), grid))


@pytest.mark.slow
def test_dropout_is_off_and_the_result_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = randomize(tiny_model(dropout_rate=0.5, attention_dropout_rate=0.5, drop_path_rate=0.5))
    finally:
        keras.config.set_dtype_policy("float32")
    [images] = random_inputs(SHAPE)
    maps = keras_vit.attention_maps(model, images)
    assert maps.dtype == keras_vit.attention_rollout(model, images).dtype == "float32"
    np.testing.assert_array_equal(maps, keras_vit.attention_maps(model, images))
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)


def test_rollout_refuses_an_unknown_pooling(model, monkeypatch):
    """A pooling that is added later is refused until the rollout supports it."""
    config = keras_vit.ViTConfig(4, 12, 1, 3, 20)
    object.__setattr__(config, "pooling", "nowhere")
    monkeypatch.setattr(attention, "model_config", lambda model: config)
    with pytest.raises(ValueError, match=r"not defined for pooling='nowhere'\. Call keras_vit\.attention_maps"):
        keras_vit.attention_rollout(model, random_inputs(SHAPE)[0])


@pytest.mark.parametrize("analysis", [keras_vit.attention_maps, keras_vit.attention_rollout])
def test_refusals(analysis, model):
    [images] = random_inputs(SHAPE)
    with pytest.raises(ValueError, match=r"images of shape \(None, 8, 9, 3\).*Received: images of shape \(8, 9, 3\)"):
        analysis(model, images[0])
    with pytest.raises(ValueError, match=r"images of shape \(None, 8, 9, 3\).*of shape \(2, 4, 9, 3\)"):
        analysis(model, images[:, :4])
    headless = keras.Model(model.input, model.get_layer("position_embedding").output, name="headless")
    with pytest.raises(ValueError, match="'headless' contains no encoder block"):
        analysis(headless, images)
    twice = keras.Model(model.input, model(model(model.input)[:, None, None, :3] + model.input))
    with pytest.raises(ValueError, match=r"runs more than once.* or choose another layer"):
        analysis(twice, images)


def test_attention_of_queries():
    config = keras_vit.ViTConfig((4, 5), 24, num_layers=3, num_heads=2, mlp_dim=20)
    head = keras_vit.heads.EoMTHead(num_queries=3, num_blocks=2, num_upscales=0)
    model = randomize(keras_vit.Segmenter(config, head, classes=4, input_shape=(12, 15, 3)))
    w, images = canonical_weights(model), random_inputs((12, 15, 3))[0]
    z = reference.encoder_block(reference.embed(images.astype("float64"), w), reference.part(w, "encoder_block_0"))
    z = np.concatenate([np.repeat(w["head/query"][None], len(z), axis=0), z], axis=1)
    found = keras_vit.query_attention(model, images)
    assert found.shape == (len(images), 2, 3, 3, 3)
    for i in range(2):
        block = reference.part(w, f"head/encoder_block_{i + 1}")
        inputs = reference.norm(z, block, "attention_norm")
        weights = _attention(inputs, inputs, reference.part(block, "attention")).mean(axis=1)
        assert_close(found[:, i].reshape(-1, 3, 9), weights[:, :3, -9:])
        z = reference.encoder_block(z, block)
    with pytest.raises(ValueError, match="has no EoMTHead"):
        keras_vit.query_attention(tiny_model(num_layers=1), random_inputs(SHAPE)[0])
