"""Models load from timm's files with the same logits, and timm loads our files."""

import numpy as np
import pytest
import timm
import torch

import keras_vit
from tests.peers.torch_models import random_images, randomize, run
from tests.test_case import assert_close, compute, slow_except
from tests.test_case import randomize as randomize_weights

SIZE, LARGER = (32, 48), (72, 40)
SIZES = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 1.5, "num_classes": 7}
MODELS = {
    "token": ("vit_base_patch16_224", {}),
    "average": ("vit_base_patch16_224", {"global_pool": "avg"}),
    "average_after_norm": ("vit_base_patch16_gap_224", {}),
    "no_head": ("vit_base_patch16_224", {"num_classes": 0}),
    "deit_distilled": ("deit_base_distilled_patch16_224", {}),
    "deit3": ("deit3_base_patch16_224", {}),
    "dinov2": ("vit_base_patch14_dinov2", {"num_classes": 0}),
    "dinov2_registers": ("vit_base_patch14_reg4_dinov2", {}),
    "dinov2_swiglu": ("vit_giant_patch14_reg4_dinov2", {"mlp_ratio": 3.0}),
    "siglip": ("vit_base_patch16_siglip_224", {"num_classes": 0}),
    "siglip2": ("vit_base_patch32_siglip_256", {"num_classes": 0}),
    "clip": ("vit_base_patch16_clip_quickgelu_224", {}),
    "qk_norm": ("vit_base_patch16_224", {"qk_norm": True}),
    "fixed_gelu": ("vit_base_patch16_224", {"act_layer": "gelu_tanh"}),
    "flexivit": ("flexivit_base", {}),
    "no_positions": ("vit_base_patch16_224", {"pos_embed": "none"}),
    "dinov3": ("vit_small_patch16_dinov3", {}),
    "dinov3_biases": ("vit_small_patch16_dinov3_qkvb", {"global_pool": "token", "num_classes": 0}),
    "dinov3_swiglu": ("vit_small_plus_patch16_dinov3_qkvb", {"num_reg_tokens": 3}),
    "lingbot": ("vit_giant_patch16_lingbot", {}),
    "eva": ("eva_giant_patch14_clip_224", {}),
    "eva02_small": ("eva02_small_patch14_336", {}),
    "eva02_base": ("eva02_base_patch14_448", {"ref_feat_shape": [3, 5]}),
    "eva02_clip": ("eva02_large_patch14_clip_336", {}),
    "eva02_enormous": ("eva02_enormous_patch14_clip_224", {}),
    "sbb_rope": ("vit_betwixt_patch16_rope_reg4_gap_256", {}),
    "pe_core": ("vit_pe_core_base_patch16_224", {"attn_pool_num_heads": 4, "attn_pool_mlp_ratio": 1.25}),
    "pe_core_gigantic": ("vit_pe_core_gigantic_patch14_448", {}),
    "pe_lang": ("vit_pe_lang_large_patch14_448", {"num_classes": 0}),
    "pe_spatial": ("vit_pe_spatial_base_patch16_512", {"num_classes": 0, "global_pool": ""}),
    "rope_axial": ("vit_small_patch16_rope_224", {}),
    "rope_axial_with_table": ("vit_small_patch16_rope_ape_224", {"rope_rotate_half": True}),
    "rope_mixed": ("vit_small_patch16_rope_mixed_ape_224", {}),
    "so150m": ("vit_so150m_patch16_reg4_map_256", {}),
    "so150m2": ("vit_so150m2_patch16_reg1_gap_256", {}),
    "intern300m": ("vit_intern300m_patch14_448", {}),
    "post_norm": ("vit_base_patch16_rpn_224", {}),
    "beit3": ("beit3_base_patch16_224", {}),
}
HYBRIDS = {
    "r_ti": ("vit_tiny_r_s16_p8_224", {"patch_size": 2}),
    "r26": ("vit_small_r26_s32_224", {"patch_size": 1}),
    "r50": ("vit_base_r50_s16_224", {"patch_size": 1}),
}

# One of each family.
OFTEN = ["token", "deit_distilled", "deit3", "dinov2_swiglu", "siglip", "clip", "r26", "dinov3_swiglu", "eva"]
OFTEN += ["eva02_base", "sbb_rope", "pe_core", "rope_mixed", "so150m2", "intern300m", "beit3"]
NAMES = slow_except(OFTEN, [*MODELS, *HYBRIDS])


def make(name, folder):
    """A timm model with random weights that timm itself saved."""
    architecture, changes = {**MODELS, **HYBRIDS}[name]
    size = (64, 96) if name in HYBRIDS else SIZE
    model = randomize(timm.create_model(architecture, **{"img_size": size, **SIZES, **changes}))
    timm.models.save_for_hf(model, folder, safe_serialization=True)
    return model


def tolerance(name):
    # timm standardises a hybrid's kernels with sqrt(variance + 1e-8), Google's code with deviation + 1e-5. timm's files
    # load with deviation + 1e-8.
    return 5e-5 if name in HYBRIDS else 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_files_of_both(name, tmp_path):
    """Our model of timm's file has the same logits, and timm and we load what we save of it."""
    theirs = make(name, tmp_path / "theirs")
    ours = keras_vit.from_pretrained(tmp_path / "theirs", classifier_activation=None)
    images = random_images(*ours.input_shape[1:3])
    expected = run(theirs, images).numpy()
    found = compute(ours, [images])
    assert_close(found, expected, tolerance(name))
    keras_vit.save_weights(ours, tmp_path / "ours", "timm")
    saved = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    assert_close(found, run(saved, images).numpy(), tolerance(name))
    again = keras_vit.from_pretrained(tmp_path / "ours", classifier_activation=None)
    np.testing.assert_array_equal(compute(again, [images]), found)
    if name not in HYBRIDS:
        larger = keras_vit.from_pretrained(tmp_path / "theirs", classifier_activation=None, input_shape=(*LARGER, 3))
        theirs.set_input_size(LARGER)
        images = random_images(*LARGER)
        assert_close(compute(larger, [images]), run(theirs, images).numpy())


CONFIG = keras_vit.ViTConfig(8, 24, 2, 3, 36, mlp="gelu_exact")
INTERLEAVED = keras_vit.RotaryConfig(
    base=50.0, layout="interleaved", coordinates="grid", reference_grid=(3, 5), offset=0.5
)
# Changes of `CONFIG`. No architecture of timm has all settings of one of these models.
OWN_MODELS = {
    "positions_of_registers": {"pooling": "avg", "num_register_tokens": 3, "num_position_prefix_rows": 3},
    "no_positions_of_registers": {"pooling": "map", "num_register_tokens": 3},
    "pooled_prefix": {"pooling": "avg", "class_token": True, "pool_prefix_tokens": True, "mlp": "gelu_tanh"},
    "norms": {"mlp": "swiglu", "mlp_inner_norm": True, "attention_inner_norm": True, "final_norm": False},
    "swiglu_of_eva": {"mlp": "swiglu", "layer_norm_epsilon": 1e-5, "mlp_inner_norm": True, "layer_scale": 0.1},
    "rotary_and_table": {"rotary": keras_vit.RotaryConfig(axis_order="xy"), "num_register_tokens": 2, "qk_norm": True},
    "rotary_with_offset": {"rotary": INTERLEAVED, "pooling": "map", "pooling_num_heads": 2, "qkv_bias": "no_key"},
    "rotary_post_norm": {"rotary": INTERLEAVED, "block_norm": "post", "pre_norm": True, "position_embedding": "none"},
}


@pytest.mark.parametrize("name", OWN_MODELS)
def test_save_weights_of_own_models(name, tmp_path):
    config = CONFIG.replace(**OWN_MODELS[name])
    ours = keras_vit.ViT(config, input_shape=(*SIZE, 3), classes=7, classifier_activation=None)
    randomize_weights(ours)
    keras_vit.save_weights(ours, tmp_path, "timm")
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = random_images(*SIZE)
    found = compute(ours, [images])
    assert_close(found, run(theirs, images).numpy())
    assert_close(compute(keras_vit.from_pretrained(tmp_path, classifier_activation=None), [images]), found)


@pytest.mark.parametrize("pool", ["gap", "map", "par_gap", "parfac_gap"])
def test_naflexvit_with_images_of_different_sizes(pool, tmp_path):
    """Registers, LayerScale and a norm after the mean; attention pooling; positions that keep proportions."""
    name = f"naflexvit_base_patch16_{pool}"
    sizes = {
        "patch_size": 8,
        "embed_dim": 24,
        "depth": 2,
        "num_heads": 3,
        "mlp_ratio": 1.5,
        "pos_embed_grid_size": (4, 4),
    }
    theirs = timm.create_model(name, num_classes=7, **sizes).eval()
    randomize(theirs)
    timm.models.save_for_hf(theirs, tmp_path, model_args=sizes)
    grids, rng = np.array([(3, 6), (5, 2), (4, 4), (1, 9)]), np.random.default_rng(0)
    patches = rng.uniform(0, 255, (4, 20, 8, 8, 3)).astype("float32")
    index, columns = np.arange(20), grids[:, 1:]
    valid = index < grids.prod(1, keepdims=True)
    coordinates = np.stack([index // columns, index % columns], axis=-1) * valid[..., None]
    inputs = {
        "patches": torch.from_numpy((patches / 255 - 0.5) / 0.5).reshape(4, 20, -1),
        "patch_coord": torch.from_numpy(coordinates),
        "patch_valid": torch.from_numpy(valid),
    }
    with torch.no_grad():
        expected = theirs(inputs).numpy()
    model = keras_vit.from_pretrained(tmp_path, classifier_activation=None)
    outputs = keras_vit.naflex_model(model, 20).predict_on_batch({"patches": patches, "grid": grids})
    assert_close(outputs, expected)
    assert np.ptp(expected, axis=0).max() > 0.01
