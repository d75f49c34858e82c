"""The layout of OpenCLIP, tested without torch and timm; tests/peers compares with timm."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.containers.safetensors import write_safetensors
from keras_vit.weights.formats.open_clip import NAMES
from keras_vit.weights.opening import open_checkpoint
from tests.test_case import canonical_weights
from tests.weights.converter_case import CONFIG, assert_same_weights, contents, make

CLIP = CONFIG.replace(mlp="gelu_exact", layer_norm_epsilon=1e-5, pre_norm=True)
# CLIPA (arXiv 2305.07017) has these settings.
CLIPA = CONFIG.replace(mlp="gelu_exact", class_token=True, pooling="avg", norm_placement="after_pooling")
VISION = {"layers": 2, "width": 12, "head_width": 4, "patch_size": [4, 3], "image_size": [8, 9]}
MEANS = {"mean": [0.1, 0.2, 0.4], "std": [0.25, 0.5, 0.75]}


def arrays_of(weights):
    """{name in OpenCLIP's files: array}, with the arrays of a text tower."""
    weights = {path.replace("pooled_norm/", "encoder_norm/"): array for path, array in weights.items()}
    weights.pop("predictions/bias")
    if weights.pop("patch_embedding/bias", None) is not None:
        assert "pre_norm/gamma" not in weights
    tower = {f"visual.{name}": array for name, array in NAMES.encode(weights, CONFIG.num_heads).items()}
    return {**tower, "logit_scale": np.ones((), "float32"), "positional_embedding": np.ones((7, 5), "float32")}


def write(folder, arrays, vision=VISION, **settings):
    write_safetensors(folder / "open_clip_model.safetensors", arrays)
    config = {"model_cfg": {"vision_cfg": vision, "text_cfg": {}}, **settings}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder


def weights_of(config):
    weights = canonical_weights(make(config))
    weights["predictions/bias"] = np.zeros_like(weights["predictions/bias"])
    if not config.pre_norm:
        weights["patch_embedding/bias"] = np.zeros_like(weights["patch_embedding/bias"])
    return weights


CASES = [
    (CLIPA, {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True, "norm_kwargs": {"eps": 1e-6}}),
    (CLIP.replace(layer_scale=0.3, mlp="gelu_tanh"), {"ls_init_value": 0.3, "act_kwargs": {"approximate": "tanh"}}),
]


@pytest.mark.parametrize("case", CASES)
def test_reads_weights_and_settings(case, tmp_path):
    config, vision = case
    weights = weights_of(config)
    arrays = arrays_of(weights)
    model = keras_vit.from_pretrained(write(tmp_path, arrays, {**VISION, **vision}))
    assert_same_weights(model, weights)
    found = keras_vit.describe(model).config
    assert found == config.replace(position_interpolation="bicubic_antialias")
    assert model.layers[-1].activation.__name__ == "linear"
    pixels = keras_vit.describe(model).pixels
    assert pixels["mean"] == [0.48145466, 0.4578275, 0.40821073]
    assert pixels["std"] == [0.26862954, 0.26130258, 0.27577711]
    report = keras_vit.load_weights(model, tmp_path)
    assert report.skipped.keys() == {"logit_scale", "positional_embedding"}
    assert report.format == "open_clip"


def test_projection_is_not_transposed():
    kernel = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(NAMES.decode({"proj": kernel}, 1)["predictions/kernel"], kernel)


@pytest.fixture(scope="module")
def arrays():
    return arrays_of(weights_of(CLIP))


@pytest.mark.parametrize(
    ("settings", "crop"), [({**MEANS, "resize_mode": "squash", "interpolation": "bilinear"}, None), (MEANS, (8, 9))]
)
def test_image_preparation(settings, crop, arrays, tmp_path):
    pixels = open_checkpoint(write(tmp_path, arrays, preprocess_cfg=settings)).preprocessing
    assert (pixels["mean"], pixels["std"]) == ((0.1, 0.2, 0.4), (0.25, 0.5, 0.75))
    assert (pixels["resize"], pixels["crop"]) == ((8, 9), crop)
    assert pixels["interpolation"] == settings.get("interpolation", "bicubic")


@pytest.mark.parametrize(
    ("vision", "settings", "message"),
    [
        (
            {"attentional_pool": True},
            {},
            "contains attentional_pool=True. This package supports only attentional_pool=False",
        ),
        ({"pool_type": "none"}, {}, "contains pool_type='none'. This package supports only pool_type='tok' or 'avg'"),
        ({"pool_typ": "tok"}, {}, r"contains the unknown setting pool_typ='tok'\. Did you mean 'pool_type'"),
        ({"width": 24}, {}, "contains width=24, but the arrays have 12"),
        ({"head_width": 64}, {}, "does not contain the number of attention heads.*Pass num_heads=..."),
        ({}, {"preprocess_cfg": {**MEANS, "resize_mode": "longest"}}, "only resize_mode='shortest' or 'squash'"),
        ({}, {"preprocess_cfg": {**MEANS, "interpolation": "lanczos"}}, "only interpolation='bilinear' or 'bicubic'"),
        ({}, {"preprocess_cfg": {**MEANS, "mode": "L"}}, "only mode='RGB'"),
    ],
)
def test_other_settings_are_refused(vision, settings, message, arrays, tmp_path):
    with pytest.raises(ValueError, match=message):
        open_checkpoint(write(tmp_path, arrays, {**VISION, **vision}, **settings))


def test_unknown_settings_are_named(arrays, tmp_path):
    settings = {**MEANS, "size": 8, "mode": "RGB", "interpolation": "random", "fill_color": 0, "gamma": 2}
    checkpoint = open_checkpoint(write(tmp_path, arrays, preprocess_cfg=settings))
    assert checkpoint.ignored == {
        "gamma": "2 in preprocess_cfg of open_clip_config.json is unknown and has no effect",
    }
    assert checkpoint.preprocessing["interpolation"] == "bicubic"  # OpenCLIP draws one in training only.


def test_files_without_a_config_need_a_family(arrays, tmp_path):
    (write(tmp_path, arrays) / "open_clip_config.json").unlink()
    hints = {"num_heads": 3, "grid_size": (2, 3)}
    with pytest.raises(ValueError, match="Pass family='clip' for the weights of OpenAI, or family='open_clip'"):
        open_checkpoint(tmp_path, **hints)
    assert open_checkpoint(tmp_path, family="clip", **hints).config.mlp == "quick_gelu"
    assert open_checkpoint(tmp_path, family="open_clip", **hints).config.mlp == "gelu_exact"
    for family in ("pe", "deit"):
        with pytest.raises(ValueError, match=f"those of family='clip' or 'open_clip'. Received: family='{family}'"):
            open_checkpoint(tmp_path, family=family, **hints)
    without_norm = {name: array for name, array in arrays.items() if "ln_post" not in name}
    write_safetensors(tmp_path / "open_clip_model.safetensors", without_norm)
    assert open_checkpoint(tmp_path, **hints).config.rotary.reference_grid == (2, 3)
    with pytest.raises(ValueError, match=r"those of family='pe'\. Received: family='clip'"):
        open_checkpoint(tmp_path, family="clip", **hints)


def test_towers_of_timm(saved, tmp_path):
    weights, path = saved("timm", CONFIG.replace(mlp="gelu_exact", patch_size=4), input_shape=(8, 8, 3))
    tower = {f"visual.trunk.{name}": x for name, x in contents(path)["model.safetensors"].items()}
    kernel, bias = (tower.pop(f"visual.trunk.head.{part}") for part in ("weight", "bias"))
    vision = {"timm_model_name": "vit_base_patch16_224", "timm_pool": "token", "image_size": 8}
    linear = {"visual.head.proj.weight": kernel, "visual.head.proj.bias": bias}
    model = keras_vit.from_pretrained(write(tmp_path, {**tower, **linear}, vision), num_heads=3)
    assert_same_weights(model, weights)
    mlp = {"visual.head.mlp.fc1.weight": np.ones((10, 12), "float32"), "visual.head.mlp.fc2.weight": kernel[:, :10]}
    write(tmp_path, {**tower, **mlp}, vision)
    with pytest.raises(ValueError, match=r"reads the output of an MLP\. No classifier of this package does"):
        keras_vit.from_pretrained(tmp_path, num_heads=3)
    assert keras_vit.from_pretrained(tmp_path, num_heads=3, include_top=False).output_shape == (None, 12)
    (tmp_path / "open_clip_config.json").unlink()
    with pytest.raises(ValueError, match=r"The image tower is a model of timm\. Put the open_clip_config\.json"):
        keras_vit.from_pretrained(tmp_path, num_heads=3)
