"""The `.pth` files of DeiT, DINO, MAE and DINOv2 load. They have timm's early names beside other entries.

The error for a file without `family` suggests a family, based on the names of the arrays.
"""

import argparse

import pytest
import timm
import torch

import keras_vit
from tests.peers.torch_models import random_images, randomize, run
from tests.test_case import assert_close, slow_except

SIZES = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 1.5, "num_classes": 7}
TOLD = {"num_heads": 3, "grid_size": (4, 4), "classifier_activation": None}


def model(architecture="vit_base_patch16_224", **changes):
    return randomize(timm.create_model(architecture, **{"img_size": 32, **SIZES, **changes}))


def deit(state):
    return {"model": state, "args": argparse.Namespace(lr=0.1), "epoch": 3}


def deit3(state):
    old_names = {name: name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2") for name in state}
    return {"model": {old_names[name]: value for name, value in state.items()}}


def dino(state):
    teacher = {f"module.backbone.{name}": value for name, value in state.items()}
    teacher |= {"module.head.mlp.0.weight": torch.ones(3, 24), "module.head.last_layer.weight_v": torch.ones(5, 3)}
    return {"teacher": teacher, "optimizer": {"state": {0: {"step": torch.ones(())}}}}


def mae(state):
    decoder = {"mask_token": torch.ones(1, 1, 8), "decoder_pos_embed": torch.ones(1, 17, 8)}
    return {"model": {**state, **decoder, "decoder_blocks.0.norm1.weight": torch.ones(8)}}


def dinov2(state):
    """The state as the authors save it: with the class token's position row, which timm adds to the token."""
    state = dict(state)
    row = torch.full((1, 1, 24), 0.25)
    state["cls_token"] = state["cls_token"] - row
    state["pos_embed"] = torch.cat([row, state["pos_embed"]], dim=1)
    state["mask_token"] = torch.zeros(1, 24)
    for old, new in (("reg_token", "register_tokens"), ("mlp.fc1", "mlp.w12"), ("mlp.fc2", "mlp.w3")):
        state = {name.replace(old, new): value for name, value in state.items()}
    return state


FILES = {
    "deit": ({}, deit, None),
    "deit_distilled": ({"architecture": "deit_base_distilled_patch16_224"}, deit, "deit"),
    "deit3": ({"init_values": 0.1, "no_embed_class": True}, deit3, "deit3"),
    "dino": ({"num_classes": 0}, dino, "dino"),
    "mae": ({"num_classes": 0}, mae, "mae"),
    "mae_finetuned": ({"global_pool": "avg"}, deit, "mae"),
    "dinov2": (
        {"architecture": "vit_giant_patch14_reg4_dinov2", "mlp_ratio": 3.0, "num_classes": 0},
        dinov2,
        "dinov2_registers",
    ),
}


@pytest.mark.parametrize("name", slow_except(["deit_distilled", "deit3", "dino", "mae", "dinov2"], FILES))
def test_from_pretrained(name, tmp_path):
    arguments, wrap, family = FILES[name]
    hints = {**TOLD, "family": family or "deit"}
    theirs = model(**arguments)
    torch.save(wrap(theirs.state_dict()), tmp_path / "model.pth")
    with pytest.raises(ValueError, match=f"Pass family=.* suggest family='{family or 'timm'}'"):
        keras_vit.from_pretrained(tmp_path / "model.pth", **TOLD)
    ours = keras_vit.from_pretrained(tmp_path / "model.pth", **hints)
    images = random_images(32, 32)
    assert_close(ours(images), run(theirs, images).numpy())
    assert keras_vit.describe(ours).pixels["mean"] == [0.485, 0.456, 0.406]
    expected = keras_vit.weights.catalogue.FAMILIES[family or "deit"].position_interpolation
    assert keras_vit.describe(ours).config.position_interpolation == expected
