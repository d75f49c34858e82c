"""Models load from timm's files with the same logits, and timm loads our files."""

import numpy as np
import pytest
import timm

import keras_vit
from tests.peers.torch_models import random_images, randomize, run
from tests.test_case import assert_close, slow_except, to_numpy

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
}
HYBRIDS = {
    "r_ti": ("vit_tiny_r_s16_p8_224", {"patch_size": 2}),
    "r26": ("vit_small_r26_s32_224", {"patch_size": 1}),
    "r50": ("vit_base_r50_s16_224", {"patch_size": 1}),
}

NAMES = slow_except(("token", "deit_distilled", "deit3", "dinov2_swiglu", "siglip", "clip", "r26"), [*MODELS, *HYBRIDS])


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
def test_from_pretrained(name, tmp_path):
    theirs = make(name, tmp_path)
    for size in (None, (128, 96) if name in HYBRIDS else LARGER):
        arguments = {} if size is None else {"input_shape": (*size, 3)}
        ours = keras_vit.from_pretrained(tmp_path, classifier_activation=None, **arguments)
        if size is not None:
            theirs.set_input_size(size)
        images = random_images(*ours.input_shape[1:3])
        assert_close(ours(images), run(theirs, images).numpy(), tolerance(name))


@pytest.mark.parametrize("name", NAMES)
def test_save_weights(name, tmp_path):
    make(name, tmp_path / "theirs")
    ours = keras_vit.from_pretrained(tmp_path / "theirs", classifier_activation=None)
    keras_vit.save_weights(ours, tmp_path / "ours", "timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    images = random_images(*ours.input_shape[1:3])
    assert_close(ours(images), run(theirs, images).numpy(), tolerance(name))
    again = keras_vit.from_pretrained(tmp_path / "ours", classifier_activation=None)
    np.testing.assert_array_equal(to_numpy(again(images)), to_numpy(ours(images)))
