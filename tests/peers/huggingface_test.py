"""Models load from transformers' files with the same outputs, and transformers loads our files."""

import json

import keras
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from safetensors.torch import save_file

import keras_vit
from benchmarks.support_matrix_transformers import patches
from tests.peers.torch_models import random_images, randomize, run
from tests.pictures import picture
from tests.test_case import assert_close, compute, slow_except

RECTANGLE = (32, 48)
OTHER = (72, 24)  # More patches than 32 x 32 has, but fewer per row: this size shows whether the resize is antialiased.

TINY = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 36, "patch_size": 8}
TINY |= {"image_size": 32}
OURS = keras_vit.ViTConfig(patch_size=8, hidden_dim=24, num_layers=1, num_heads=3, mlp_dim=36)
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20, "vocab_size": 11}
LABELS = {"id2label": {index: f"label {index}" for index in range(7)}}
REGISTERS = {"num_register_tokens": 3}
SWIGLU = {"use_swiglu_ffn": True}
GATED = {"use_gated_mlp": True, "hidden_act": "silu"}
TOKENS = {"include_top": False, "pooling": None}

# name: (model class, config class, changes of the config, name of the output, arguments of `from_pretrained`)
MODELS = {
    "vit": ("ViTForImageClassification", "ViTConfig", LABELS, "logits", {}),
    "vit_rectangle": ("ViTForImageClassification", "ViTConfig", {**LABELS, "image_size": RECTANGLE}, "logits", {}),
    "vit_tokens": ("ViTModel", "ViTConfig", {}, "last_hidden_state", TOKENS),
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", LABELS, "logits", {}),
    "deit_tokens": ("DeiTModel", "DeiTConfig", {}, "last_hidden_state", TOKENS),
    "mae": ("ViTMAEModel", "ViTMAEConfig", {"mask_ratio": 0.0}, "last_hidden_state", TOKENS),
    "dinov2": ("Dinov2Model", "Dinov2Config", {"mlp_ratio": 2}, "last_hidden_state", TOKENS),
    "dinov2_swiglu": ("Dinov2Model", "Dinov2Config", {"mlp_ratio": 3, **SWIGLU}, "last_hidden_state", TOKENS),
    "registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersConfig",
        {"mlp_ratio": 2, **REGISTERS},
        "last_hidden_state",
        TOKENS,
    ),
    "registers_swiglu": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersConfig",
        {"mlp_ratio": 3, **SWIGLU, **REGISTERS},
        "pooler_output",
        {},
    ),
    "dinov3": ("DINOv3ViTModel", "DINOv3ViTConfig", REGISTERS, "last_hidden_state", TOKENS),
    "dinov3_gated": ("DINOv3ViTModel", "DINOv3ViTConfig", {**REGISTERS, **GATED}, "pooler_output", {}),
    "dinov3_no_biases": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {"query_bias": False, "value_bias": False, "rope_theta": 30.0, "image_size": RECTANGLE},
        "last_hidden_state",
        TOKENS,
    ),
    "dinov3_key_bias": ("DINOv3ViTModel", "DINOv3ViTConfig", {"key_bias": True}, "pooler_output", {}),
    "ijepa": ("IJepaForImageClassification", "IJepaConfig", LABELS, "logits", {}),
    "ijepa_tokens": ("IJepaModel", "IJepaConfig", {"qkv_bias": False}, "last_hidden_state", TOKENS),
    "msn": ("ViTMSNForImageClassification", "ViTMSNConfig", LABELS, "logits", {}),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", {}, "pooler_output", {}),
    "siglip_no_head": ("SiglipVisionModel", "SiglipVisionConfig", {"vision_use_head": False}, "last_hidden_state", {}),
    "siglip_classifier": ("SiglipForImageClassification", "SiglipConfig", LABELS, "logits", {}),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", {}, "pooler_output", {}),
    "clip_projection": (
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        {"projection_dim": 10},
        "image_embeds",
        {},
    ),
}
# transformers loads our files of these models.
SAVED = {
    *("vit", "vit_rectangle", "vit_tokens", "deit", "deit_tokens", "dinov2", "dinov2_swiglu", "registers"),
    *("registers_swiglu", "dinov3", "dinov3_gated", "dinov3_no_biases", "dinov3_key_bias", "ijepa", "ijepa_tokens"),
    *("siglip", "clip"),
}
# One of each family.
SMALL = ["vit", "deit", "mae", "dinov2", "registers_swiglu", "dinov3_gated", "ijepa", "msn", "siglip"]
SMALL += ["clip_projection"]


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def build(model_class, config_class, changes):
    """A transformers model with random weights. The SigLIP config contains one config per tower."""
    tiny = TINY
    if config_class == "SiglipConfig":
        tiny = {"vision_config": TINY, "text_config": TEXT}
    config = getattr(transformers, config_class)(**{**tiny, **changes})
    return randomize(getattr(transformers, model_class)(config))


def make(name, folder):
    """A transformers model that transformers itself saved."""
    model = build(*MODELS[name][:3])
    model.save_pretrained(folder)
    return model


def outputs(model, name, images):
    """The outputs of transformers at any image size."""
    arguments = {}
    if name == "mae":  # No patch is masked or shuffled.
        arguments["noise"] = torch.arange(images.shape[1] * images.shape[2] // 64).tile(2, 1)
    if images.shape[1:3] == OTHER and not name.startswith(("dinov", "registers")):  # DINOv2 always interpolates.
        arguments["interpolate_pos_encoding"] = True
    return run(model, images, **arguments)[MODELS[name][3]].numpy()


def load(folder, name, **arguments):
    return keras_vit.from_pretrained(
        folder, family="google", **{"classifier_activation": None, **MODELS[name][4], **arguments}
    )


@pytest.mark.parametrize("name", slow_except(SMALL, MODELS))
def test_files_of_both(name, tmp_path):
    """Our model of transformers' file has the same outputs, and transformers loads what we save of it."""
    theirs = make(name, tmp_path / "theirs")
    if "rectangle" not in name:
        larger, images = load(tmp_path / "theirs", name, input_shape=(*OTHER, 3)), random_images(*OTHER)
        assert_close(compute(larger, [images]), outputs(theirs, name, images))
    ours = load(tmp_path / "theirs", name)
    images = random_images(*ours.input_shape[1:3])
    expected = outputs(theirs, name, images)
    assert_close(compute(ours, [images]), expected)
    if name in SAVED:
        keras_vit.save_weights(ours, tmp_path / "ours", "huggingface")
        assert_close(outputs(_loaded_by_transformers(tmp_path / "ours", MODELS[name][0]), name, images), expected)
    if name in SAVED - {"vit_tokens", "deit_tokens", "clip"}:  # Their own files have other names, or a pooler.
        _assert_same_file(*(tmp_path / folder / "model.safetensors" for folder in ("ours", "theirs")))


def _loaded_by_transformers(folder, class_name):
    model_class = getattr(transformers, class_name)
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == ([class_name], model_class.config_class.model_type)
    arguments = {"add_pooling_layer": False} if class_name in ("ViTModel", "DeiTModel") else {}
    model, info = model_class.from_pretrained(folder, output_loading_info=True, **arguments)
    assert not any(info.values()), info
    return model.eval()


def _assert_same_file(ours, theirs):
    expected, found = load_file(theirs), load_file(ours)
    for name in [name for name in expected if name.endswith("mask_token")]:
        expected[name] = np.zeros_like(expected[name])  # Only masked pre-training uses it. Our model has none.
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_pooler(tmp_path):
    """The pooler of transformers becomes the `pre_logits` layer if `representation_dim` is its width."""
    theirs = make("vit_tokens", tmp_path)
    ours = keras_vit.from_pretrained(tmp_path, family="google", classes=5, representation_dim=24)
    pooled = keras.Model(ours.input, ours.get_layer("pre_logits").output)
    images = random_images(32, 32)
    assert_close(compute(pooled, [images]), run(theirs, images).pooler_output.numpy())


def test_names_in_memory(tmp_path):
    """Files with the names of `state_dict()` load too; `save_pretrained` writes other names."""
    theirs = make("vit", tmp_path)
    on_disk = set(load_file(tmp_path / "model.safetensors"))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    assert set(theirs.state_dict()) != on_disk
    images = random_images(32, 32)
    assert_close(compute(load(tmp_path, "vit"), [images]), outputs(theirs, "vit", images))


def test_text_tower_is_left_out(tmp_path):
    theirs = build("SiglipModel", "SiglipConfig", {})
    theirs.save_pretrained(tmp_path)
    ours = keras_vit.from_pretrained(tmp_path)
    images = random_images(32, 32)
    assert_close(compute(ours, [images]), run(theirs.vision_model, images).pooler_output.numpy())
    report = keras_vit.load_weights(ours, tmp_path)
    others = {name for name in load_file(tmp_path / "model.safetensors") if not name.startswith("vision_model.")}
    assert {"logit_scale", "text_model.head.weight"} <= others
    assert report.skipped == dict.fromkeys(others, "not part of the model")


def test_decoder_is_left_out(tmp_path):
    decoder = {f"decoder_{key}": value for key, value in TEXT.items() if key != "vocab_size"}
    theirs = build("ViTMAEForPreTraining", "ViTMAEConfig", {"mask_ratio": 0.0, **decoder})
    theirs.save_pretrained(tmp_path)
    ours = keras_vit.from_pretrained(tmp_path, family="mae", pooling=None)
    images = random_images(32, 32)
    expected = run(theirs.vit, images, noise=torch.arange(16).tile(2, 1)).last_hidden_state
    assert_close(compute(ours, [images]), expected.numpy())
    skipped = keras_vit.load_weights(ours, tmp_path).skipped
    assert skipped
    assert all(name.startswith("decoder.") for name in skipped)


@pytest.mark.parametrize(
    ("model_class", "config_class", "changes", "reason"),
    [
        ("Dinov2ForImageClassification", "Dinov2Config", {"mlp_ratio": 2}, "class token beside the mean of the patch"),
        ("DeiTForImageClassification", "DeiTConfig", {}, "the class token and not the distillation token"),
        ("CLIPForImageClassification", "CLIPConfig", {"vision_config": TINY}, "patch tokens before the last LayerNorm"),
    ],
)
def test_other_classifiers(model_class, config_class, changes, reason, tmp_path):
    """The error names an unsupported classifier. Without it, or with a new classifier, the encoder loads."""
    theirs = build(model_class, config_class, {**LABELS, **changes})
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=reason):
        keras_vit.from_pretrained(tmp_path)
    model = keras_vit.from_pretrained(tmp_path, include_top=False)
    images = random_images(32, 32)
    encoder = getattr(theirs, theirs.base_model_prefix, None) or theirs.vision_model
    hidden = run(encoder, images)
    expected = hidden.pooler_output if config_class == "CLIPConfig" else hidden.last_hidden_state[:, 0]
    assert_close(compute(model, [images]), expected.numpy())
    assert_close(compute(keras_vit.from_pretrained(tmp_path, classes=3), [images]), np.full((2, 3), 1 / 3))


# {class: (its config class, changes of the config, its backbone's config class and changes or `None`, the error)}
REFUSED = {
    "BeitModel": ("BeitConfig", {"use_relative_position_bias": True}, None, "BEiT has relative positions"),
    "YolosModel": ("YolosConfig", {"image_size": RECTANGLE}, None, "YOLOS has detection tokens"),
    "VitPoseForPoseEstimation": (
        *("VitPoseConfig", {}, ("VitPoseBackboneConfig", {"image_size": RECTANGLE})),
        "ViTPose has patches of padded images",
    ),
}


@pytest.mark.parametrize("size", [(32, 32), OTHER])
def test_siglip_2_naflex_at_fixed_sizes(size, tmp_path):
    config = transformers.Siglip2VisionConfig(**TINY, num_patches=16)
    theirs = transformers.Siglip2VisionModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # Some are zeros.
            parameter.add_(0.05 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path)
    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    with torch.no_grad():
        expected = theirs(**patches(images, 8)).pooler_output
    model = keras_vit.from_pretrained(tmp_path, input_shape=(*size, 3))
    assert_close(compute(model, [images]), expected.numpy())
    assert np.ptp(expected.numpy(), axis=0).max() > 0.01


def test_siglip_2_naflex_with_images_of_different_sizes(tmp_path):
    """From photographs to the pooled vectors of a batch, with the owners' processor."""
    theirs = transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**TINY, num_patches=16)).eval()
    randomize(theirs)
    theirs.save_pretrained(tmp_path)
    photographs = [np.array(picture(*size)) for size in ((40, 90), (200, 30), (64, 64), (8, 200))]
    processor = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=20)
    inputs = processor(photographs, return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**inputs).pooler_output.numpy()
    naflex = keras_vit.naflex_model(keras_vit.from_pretrained(tmp_path), 20)
    ours = keras_vit.naflex_inputs(photographs, naflex)
    np.testing.assert_array_equal(ours["grid"], inputs["spatial_shapes"])
    pixels = (inputs["pixel_values"].numpy() * 0.5 + 0.5).reshape(ours["patches"].shape) * 255
    is_patch = inputs["pixel_attention_mask"].numpy()[..., None, None, None]
    assert abs((ours["patches"] - pixels) * is_patch).max() < 1.01  # They round once, Pillow after each axis.
    assert_close(naflex.predict_on_batch({**ours, "patches": pixels}), expected)
    assert np.ptp(expected, axis=0).max() > 0.01


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_kinds(name, tmp_path):
    """The error names the kind, also without the config.json."""
    config_class, changes, backbone, reason = REFUSED[name]
    changes = {**TINY, **changes}
    if backbone is not None:
        changes["backbone_config"] = getattr(transformers, backbone[0])(**{**TINY, **backbone[1]})
    config = getattr(transformers, config_class)(**changes)
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"transformers' {reason}.*, which this package does not support"):
        keras_vit.from_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=f"transformers' {reason}"):
        keras_vit.from_pretrained(tmp_path, family="google", num_heads=3)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (
            {"size": {"height": 40, "width": 56}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
            {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "resize": [32, 32], "interpolation": "bilinear"},
        ),
        (
            {"do_normalize": False, "resample": 3, "size": {"height": 32, "width": 32}},
            {"mean": 0.0, "std": 1.0, "resize": [32, 32], "interpolation": "bicubic"},
        ),
    ],
)
def test_pixels(processor, expected, tmp_path):
    make("vit", tmp_path)
    with pytest.raises(ValueError, match="does not define how pixels are normalised"):
        keras_vit.from_pretrained(tmp_path)
    transformers.ViTImageProcessor(**processor).save_pretrained(tmp_path)
    pixels = keras_vit.describe(keras_vit.from_pretrained(tmp_path)).pixels
    assert pixels == {**expected, "crop": None, "normalize": False}


def test_pixels_with_a_crop(tmp_path):
    make("dinov2", tmp_path)
    crop = {"height": 32, "width": 32}
    transformers.BitImageProcessor(size={"shortest_edge": 44}, crop_size=crop).save_pretrained(tmp_path)
    pixels = keras_vit.describe(keras_vit.from_pretrained(tmp_path)).pixels
    assert (pixels["resize"], pixels["crop"], pixels["interpolation"]) == (44, [32, 32], "bicubic")


@pytest.mark.parametrize("crop", [None, (40, 40)])
def test_image_processor(crop, tmp_path):
    size = crop or (40, 56)
    model = keras_vit.ViT(OURS, input_shape=(*size, 3), classes=2)
    protocol = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "resize": 44 if crop else size, "crop": crop}
    model.get_layer("preprocessing").set_preprocessing(**protocol, interpolation="bicubic")
    keras_vit.save_weights(model, tmp_path, "huggingface")
    assert keras_vit.describe(keras_vit.from_pretrained(tmp_path)).pixels == keras_vit.describe(model).pixels
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    images = np.random.default_rng(2).integers(0, 256, (2, 44, 44, 3) if crop else (2, *size, 3)).astype("uint8")
    theirs = processor(list(images), return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)
    centre = images[:, 2:-2, 2:-2] if crop else images  # No image needs a resize.
    assert_close(keras_vit.preprocess_input(centre, model), theirs)


@pytest.mark.parametrize(
    ("changes", "arguments", "reason"),
    [
        ({"layer_scale": 0.1, "pooling": None, "class_token": False}, {"include_top": False}, "without a class token"),
        ({"pooling": "map", "class_token": True}, {}, "a class token beside attention pooling"),
        ({"pooling": "map"}, {}, "this classifier"),
        ({"num_position_prefix_rows": 0}, {}, "positions of the patches only"),
        ({"representation_dim": 10}, {}, "a pre_logits layer with a classifier"),
        ({"layer_scale": 0.1}, {"include_top": False}, "this width of the MLP"),
        ({"layer_scale": 0.1, "mlp_dim": 48, "pre_norm": True}, {"include_top": False}, "layer_scale=0.1"),
        ({"pre_norm": True, "pooling": "map"}, {"include_top": False}, "pooling='map'"),
        ({"pre_norm": True}, {"include_top": False, "input_shape": (40, 56, 3)}, "images that are not square"),
    ],
)
def test_refused(changes, arguments, reason, tmp_path):
    """Combinations of settings are refused; tests/weights/formats/expressible_test.py tests single settings."""
    model = keras_vit.ViT(OURS, **{"input_shape": (40, 40, 3), "classes": 2, **arguments}, **changes)
    with pytest.raises(ValueError, match=reason):
        keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    assert not list(tmp_path.iterdir())
