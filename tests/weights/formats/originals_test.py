"""Files with the names that the owners of models use, tested without torch and timm; tests/peers compares with timm."""

import pathlib
import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.weights.catalogue import FAMILIES
from keras_vit.weights.containers.safetensors import write_safetensors
from keras_vit.weights.formats.originals import with_settings
from keras_vit.weights.formats.timm.architectures import arguments_of
from keras_vit.weights.opening import open_checkpoint
from tests.test_case import slow_except
from tests.weights.converter_case import CONFIG, assert_same_arrays, assert_same_weights, contents
from tests.weights.rotary_configs import EVA02

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "modern"
EXACT = CONFIG.replace(mlp="gelu_exact")
DINOV3 = EXACT.replace(
    patch_size=4,
    num_register_tokens=2,
    position_embedding="none",
    rotary=RotaryConfig(),
    layer_scale=1e-5,
    layer_norm_epsilon=1e-5,
    qkv_bias="no_key",
)


@pytest.fixture
def dinov3(saved):
    """(weights of a model, {name in DINOv3's files: array})"""
    weights, path = saved("timm", DINOV3, input_shape=(8, 12, 3))
    arrays = contents(path)["model.safetensors"]
    arrays["storage_tokens"] = arrays.pop("reg_token")
    for i in range(DINOV3.num_layers):
        query, value = (arrays.pop(f"blocks.{i}.attn.{part}_bias") for part in "qv")
        arrays[f"blocks.{i}.attn.qkv.bias"] = np.concatenate([query, np.full_like(query, 5.0), value])
        arrays[f"blocks.{i}.attn.qkv.bias_mask"] = np.repeat(np.float32([1, 0, 1]), len(query))
    arrays |= {"rope_embed.periods": np.ones(1, "float32"), "mask_token": np.ones((1, 12), "float32")}
    return weights, arrays


def write(folder, arrays):
    write_safetensors(folder / "model.safetensors", arrays)
    return folder / "model.safetensors"


def test_dinov3(dinov3, tmp_path):
    weights, arrays = dinov3
    model = keras_vit.from_pretrained(write(tmp_path, arrays), family="dinov3_sat", num_heads=3)
    assert_same_weights(model, weights)
    description = keras_vit.describe(model)
    assert description.config.replace(position_interpolation="align_corners") == DINOV3
    assert description.pixels["std"] == [0.213, 0.156, 0.143]
    report = keras_vit.load_weights(model, tmp_path / "model.safetensors", family="dinov3")
    masks = {name for name in arrays if name.endswith("bias_mask")}
    assert report.skipped.keys() == {"rope_embed.periods", "mask_token"} | masks


def test_a_mask_of_other_biases_is_refused(dinov3, tmp_path):
    _, arrays = dinov3
    arrays["blocks.1.attn.qkv.bias_mask"] = np.roll(arrays["blocks.1.attn.qkv.bias_mask"], 1)
    with pytest.raises(ValueError, match=r"blocks\.1\.attn\.qkv\.bias_mask must be 1 for queries and values, and 0"):
        open_checkpoint(write(tmp_path, arrays), family="dinov3", num_heads=3).read()


def test_other_families_are_refused(dinov3, saved, tmp_path):
    """The family defines the rotary positions, which the arrays do not show."""
    _, arrays = dinov3
    with pytest.raises(ValueError, match=r"contains storage_tokens.*'dinov3' or family='dinov3_sat', not 'deit'"):
        open_checkpoint(write(tmp_path, arrays), family="deit")
    with pytest.raises(ValueError, match=r"Pass family=.* suggest family='dinov3'"):
        open_checkpoint(tmp_path / "model.safetensors")
    plain = contents(saved("timm", EXACT).path)["model.safetensors"]
    for family in ("dinov3", "eva02"):
        with pytest.raises(ValueError, match=f"not of the family '{family}'.* suggest family='timm'"):
            open_checkpoint(write(tmp_path, plain), family=family)


def open_with_each_family(path, **given):
    """({family: config}, messages of the errors)"""
    configs, messages = {}, []
    for family in (None, *FAMILIES):
        try:
            configs[family] = open_checkpoint(path, family=family, **given).config
        except ValueError as error:
            messages.append(str(error))
    return configs, messages


ROTATED = [
    *("dinov3_timm", "dinov3_timm_qkvb", "dinov3_timm_swiglu", "eva02_base_timm", "eva02_clip_timm"),
    *("eva02_small_timm", "intern300m_timm", "pe_core_g_timm", "pe_core_timm", "pe_lang_timm", "pe_spatial_timm"),
    *("rope_axial_timm", "rope_mixed_timm"),
]


@pytest.mark.parametrize("name", slow_except(["dinov3_timm", "eva02_small_timm", "rope_axial_timm"], ROTATED))
def test_files_of_timm_are_never_read_without_their_rotary_positions(name, tmp_path):
    """The arrays of most of these models do not show their rotary positions, even if the family is known."""
    shutil.copy(GOLDEN / name / "model.safetensors", tmp_path)
    configs, messages = open_with_each_family(tmp_path, num_heads=2, grid_size=(4, 4))
    if name == "eva02_small_timm":  # The names are those of the original file.
        assert configs.keys() == {"eva", "eva02", "eva_clip"}
        assert all(config.rotary == EVA02 for config in configs.values())
    else:
        assert not configs
        assert all("Put the config.json of the model" in message for message in messages)


@pytest.mark.slow
def test_names_of_deit3_and_rope_vit_are_read_only_as_deit3(saved, tmp_path):
    """The names and shapes of RoPE-ViT with position embeddings are those of DeiT III."""
    arrays = contents(saved("timm", EXACT, layer_scale=1e-5).path)["model.safetensors"]
    arrays = {name.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"): x for name, x in arrays.items()}
    configs, messages = open_with_each_family(write(tmp_path, arrays), num_heads=3, grid_size=(2, 3))
    assert configs.keys() == {"deit3"}
    assert all("config.json" in message or "suggest family='deit3'" in message for message in messages)


def test_gelu_is_that_of_the_family(saved, tmp_path):
    path = write(tmp_path, contents(saved("timm", EXACT).path)["model.safetensors"])
    for family, mlp in (("clip", "quick_gelu"), ("siglip", "gelu_tanh"), ("deit", "gelu_exact")):
        assert open_checkpoint(path, family=family, num_heads=3, grid_size=(2, 3)).config.mlp == mlp


@pytest.mark.parametrize(
    ("prefix", "other", "family"),
    [
        ("state_dict/module.base_encoder.", "state_dict/module.momentum_encoder.", "mocov3"),
        ("target_encoder/module.", "encoder/module.", "ijepa"),
        ("model_ema/", "model/", "deit"),
    ],
)
def test_one_of_several_models_is_read(prefix, other, family, saved, tmp_path):
    weights, path = saved("timm", EXACT)
    arrays = contents(path)["model.safetensors"]
    both = {f"{other}{name}": np.zeros_like(array) for name, array in arrays.items()}
    both |= {f"{prefix}{name}": array for name, array in arrays.items()}
    checkpoint = open_checkpoint(write(tmp_path, both), family=family, grid_size=(2, 3), num_heads=3)
    assert_same_arrays(checkpoint.read(), weights)


def test_unknown_prefixes_are_refused(saved, tmp_path):
    """NaFlex has another name of the patches' kernel."""
    arrays = contents(saved("timm", EXACT).path)["model.safetensors"]
    path = write(tmp_path, {f"student.{name}": array for name, array in arrays.items()})
    with pytest.raises(ValueError, match=r"begin with 'student\.', which is not known"):
        open_checkpoint(path, family="dino")
    arrays["embeds.proj.weight"] = arrays.pop("patch_embed.proj.weight")
    with pytest.raises(ValueError, match=r"A NaFlexViT is read only with the config\.json of timm"):
        open_checkpoint(write(tmp_path, arrays), family="timm")


@pytest.mark.parametrize(
    ("family", "width", "num_heads"),
    [("mocov3", 384, 12), ("dinov3", 1280, 20), ("dinov3_sat", 4096, 32), ("eva02", 768, 12), ("deit", 384, None)],
)
def test_number_of_heads(family, width, num_heads):
    """MoCo's ViT-S and DINOv3's ViT-H+ have other numbers of heads than other models of these sizes."""
    shapes = {"patch_embed.proj.weight": (width, 3, 16, 16), "blocks.0.mlp.fc2.weight": (width, 8)}
    assert with_settings({}, family, shapes)["model_args"]["num_heads"] == num_heads


@pytest.mark.parametrize(
    ("width", "hidden", "architecture"),
    [
        (1792, 8, "eva02_enormous_patch14_clip_224"),
        (1408, 8, "eva_giant_patch14_clip_224"),
        (768, 16, "eva02_base_patch16_clip_224"),
        (768, None, "eva02_base_patch16_clip_224"),
    ],
)
def test_settings_of_eva(width, hidden, architecture):
    """Models with SwiGLU have rotary positions. Only the widest model normalises the outputs of its branches."""
    shapes = {"patch_embed.proj.weight": (width, 3, 16, 16), "blocks.0.mlp.fc2.weight": (width, 8)}
    shapes |= {} if hidden is None else {"blocks.0.mlp.fc1.weight": (hidden, width)}
    arguments = with_settings({}, "eva_clip", shapes)["model_args"]
    assert arguments.items() >= arguments_of({"architecture": architecture}).items()
