"""The tables of timm's architectures, tested without timm. `make support-matrix` compares them with timm."""

import dataclasses

import pytest

import keras_vit
from benchmarks.support_page import TIMM, read_part
from keras_vit.weights.formats.timm.architectures import arguments_of, check_architecture, num_heads_of, rotary_of
from tests.weights.rotary_configs import DINOV3, EVA02, GRID, MIXED, PE


def _rotary(config):
    """The rotary positions of a config.json."""
    check_architecture(config)
    return rotary_of(arguments_of(config))


@pytest.mark.parametrize(
    ("architecture", "arguments", "expected"),
    [
        ("vit_large_patch16_dinov3", {}, DINOV3),
        ("eva02_large_patch14_clip_336", {}, EVA02),
        ("eva02_base_patch14_448", {"use_rot_pos_emb": False}, None),
        ("eva02_enormous_patch14_clip_224", {}, None),
        ("vit_pe_lang_gigantic_patch14_448", {}, PE),
        ("vit_pe_core_base_patch16_224", {}, dataclasses.replace(PE, reference_grid=(14, 14), offset=1.0)),
        (
            "vit_pe_core_base_patch16_224",
            {"ref_feat_shape": [3, 5], "rope_grid_offset": 0, "rope_grid_indexing": "ij", "rope_temperature": 10000},
            dataclasses.replace(EVA02, reference_grid=(3, 5)),
        ),
        ("vit_small_patch16_rope_ape_224", {}, keras_vit.RotaryConfig(base=100.0, **GRID)),
        ("vit_small_patch16_rope_mixed_224", {}, MIXED),
        (
            "vit_small_patch16_rope_mixed_224",
            {"rope_type": "dinov3", "rope_rotate_half": True},
            keras_vit.RotaryConfig(base=10.0, axis_order="xy"),
        ),
        ("vit_base_patch16_224", {}, None),
    ],
)
def test_rotary_positions_follow_from_the_name_and_its_arguments(architecture, arguments, expected):
    config = {"architecture": architecture, "model_args": arguments}
    assert _rotary(config) == expected


@pytest.mark.parametrize(
    ("architecture", "num_heads", "expected"),
    [
        ("vit_pe_core_tiny_patch16_384", 3, {"attn_pool_num_heads": 8, "layer_norm_eps": 1e-5}),
        ("vit_7b_patch16_dinov3", 32, {"qkv_bias": False, "layer_norm_eps": 1e-5, "use_abs_pos_emb": False}),
        ("vit_huge_plus_patch16_dinov3_qkvb", 20, {"qkv_bias": True}),
        ("vit_giant_patch16_lingbot", 24, {"qkv_bias": False}),
        ("eva02_enormous_patch14_clip_224", 16, {"use_post_norm": True, "layer_norm_eps": 1e-6}),
        ("vit_so150m2_patch16_reg1_gap_448", 13, {"qkv_bias": False, "layer_norm_eps": 1e-6}),
        ("vit_base_patch16_plus_clip_240", 14, {"layer_norm_eps": 1e-5}),
        ("beit3_giant_patch14_336", 16, {"layer_norm_eps": 1e-5}),
        ("mine", None, {"layer_norm_eps": None}),
    ],
)
def test_other_settings_follow_from_the_name(architecture, num_heads, expected):
    arguments = arguments_of({"architecture": architecture})
    assert {name: arguments[name] for name in expected} == expected
    assert num_heads_of(architecture) == num_heads


@pytest.mark.parametrize(
    ("architecture", "arguments", "message"),
    [
        ("eva02_base_patch14_448", {"rope_type": "mrope"}, "contains rope_type='mrope'. This package supports only"),
        (
            "eva02_base_patch14_448",
            {"num_kv_heads": 4},
            "contains num_kv_heads=4. This package supports only num_kv_heads",
        ),
        ("eva02_base_patch14_448", {"reg_tokens": 4}, "unknown setting reg_tokens=4. Did you mean 'num_reg_tokens'"),
        ("eva02_base_patch14_448", {"ref_feat_shape": 0.5}, r"reference_grid must be \(rows, columns\)"),
        ("vit_base_patch16_dinov3", {"rope_grid_offset": 0.5}, "rope_type='dinov3'.* rope_grid_offset=0.5"),
        ("vit_base_patch16_rope_mixed_224", {"rope_rotate_half": True}, "rope_type='mixed', rope_rotate_half=True"),
        ("vit_base_patch16_224", {"ref_feat_shape": 16}, "unknown setting ref_feat_shape=16"),
    ],
)
def test_refuses_arguments_of_other_rotary_positions(architecture, arguments, message):
    config = {"architecture": architecture, "model_args": arguments}
    with pytest.raises(ValueError, match=message):
        _rotary(config)


def _architectures():
    """{architecture: its unsupported part, or `None`} from docs/support.md."""
    read, refused = read_part(TIMM).split("## Unsupported\n")
    found = {name: None for names, *_ in _rows(read) for name in names.split(", ")}
    return found | {name: kind for kind, names in _rows(refused) for name in names.split(", ")}


def _rows(text):
    """The cells of a table, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_architectures_are_read_and_refused_as_documented():
    """`make support-matrix` compares the document with timm."""
    found = _architectures()
    assert len(found) > 270
    for name, kind in found.items():
        if kind is None:
            check_architecture({"architecture": name})
            assert num_heads_of(name)
        else:
            with pytest.raises(ValueError, match=f"timm's {name} has {kind}, which this package does not support"):
                check_architecture({"architecture": name})
