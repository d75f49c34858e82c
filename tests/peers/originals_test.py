"""The `.pth` files of DeiT, DINO, MAE, DINOv2, DINOv3, EVA, MoCo v3 and I-JEPA load. They have names like timm's.

The error for a file without `family` suggests a family, based on the names of the arrays.
"""

import argparse

import pytest
import timm
import torch

import keras_vit
from keras_vit.weights.opening import open_checkpoint
from tests.peers.torch_models import random_images, randomize, run
from tests.test_case import assert_close, compute, slow_except

SIZES = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 1.5, "num_classes": 7}
TOLD = {"num_heads": 3, "grid_size": (4, 4), "input_shape": (32, 32, 3), "classifier_activation": None}


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


def renamed(state, *pairs):
    for old, new in pairs:
        state = {name.replace(old, new): value for name, value in state.items()}
    return state


GATES = (("fc1_g", "w1"), ("fc1_x", "w2"), ("mlp.fc2", "mlp.w3"))


def dinov3(state):
    """The keys have biases too, but a mask removes them."""
    state = renamed(state, ("reg_token", "storage_tokens"), ("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma"))
    state = renamed(state, *(GATES if any("fc1_g" in name for name in state) else ()))
    for name in [name for name in state if name.endswith(".q_bias")]:
        query, value = state.pop(name), state.pop(name.replace("q_bias", "v_bias"))
        state[name.replace("q_bias", "qkv.bias")] = torch.cat([query, torch.full((24,), 5.0), value])
        state[name.replace("q_bias", "qkv.bias_mask")] = torch.ones(3, 24).index_fill(0, torch.tensor(1), 0).flatten()
    others = {"rope_embed.periods": torch.ones(2, dtype=torch.bfloat16), "mask_token": torch.ones(1, 24)}
    return {**state, **others, "local_cls_norm.weight": torch.ones(24)}


def eva(state):
    pairs = (("mlp.norm", "mlp.ffn_ln"), ("attn.norm", "attn.inner_attn_ln"), ("q_proj.bias", "q_bias"))
    state = renamed(state, *pairs, ("v_proj.bias", "v_bias"))
    if any("fc1_g" in name for name in state):
        state = renamed(state, *GATES)
    tables = {f"{prefix}rope.freqs_cos": torch.ones(16, 8) for prefix in ("", "blocks.0.attn.", "blocks.1.attn.")}
    return {**state, **tables}


def eva_pretrained(state):
    others = {"mask_token": torch.ones(1, 1, 24), "lm_head.weight": torch.ones(5, 24), "lm_head.bias": torch.ones(5)}
    return {"model": {**renamed(eva(state), ("fc_norm", "norm")), **others}, "model_ema": None}


def eva_clip(state):
    tower = {f"visual.{name}": value for name, value in eva(state).items()}
    return {**tower, "text.token_embedding.weight": torch.ones(5, 4), "logit_scale": torch.ones(())}


def mocov3(state):
    ours = {f"module.base_encoder.{name}": value for name, value in state.items()}
    others = {f"module.momentum_encoder.{name}": torch.zeros_like(value) for name, value in state.items()}
    heads = {"module.base_encoder.head.0.weight": torch.ones(3, 24), "module.predictor.0.weight": torch.ones(3, 3)}
    return {"arch": "vit_small", "state_dict": {**others, **ours, **heads}, "optimizer": {"state": {}}}


def ijepa(state):
    average = {f"module.{name}": value for name, value in state.items()}
    encoder = {name: torch.zeros_like(value) for name, value in average.items()}
    predictor = {"module.predictor_pos_embed": torch.ones(1, 16, 8)}
    return {"encoder": encoder, "predictor": predictor, "target_encoder": average, "opt": {"state": {}}, "epoch": 3}


HEADLESS = {"num_classes": 0}
FILES = {
    "dinov3_swiglu": (
        {"architecture": "vit_small_plus_patch16_dinov3_qkvb", **HEADLESS, "global_pool": "token"},
        dinov3,
        "dinov3",
    ),
    "eva": ({"architecture": "eva_giant_patch14_224"}, lambda state: {"module": eva(state)}, "eva"),
    "eva02": ({"architecture": "eva02_base_patch14_448"}, eva, "eva02"),
    "eva02_pretrained": ({"architecture": "eva02_base_patch14_224", **HEADLESS}, eva_pretrained, "eva02"),
    "eva_clip": ({"architecture": "eva02_base_patch16_clip_224"}, eva_clip, "eva_clip"),
    "mocov3": (HEADLESS, mocov3, "mocov3"),
    "ijepa": ({"architecture": "vit_huge_patch14_gap_224", **HEADLESS}, ijepa, "ijepa"),
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


@pytest.mark.parametrize(
    "name",
    slow_except(
        ["deit_distilled", "deit3", "dino", "mae", "dinov2", "dinov3_swiglu", "eva02", "eva_clip", "mocov3", "ijepa"],
        FILES,
    ),
)
def test_from_pretrained(name, tmp_path):
    arguments, wrap, family = FILES[name]
    hints = {**TOLD, "family": family or "deit"}
    theirs = model(**arguments)
    torch.save(wrap(theirs.state_dict()), tmp_path / "model.pth")
    with pytest.raises(ValueError, match=f"Pass family=.* suggest family='{family or 'timm'}'"):
        keras_vit.from_pretrained(tmp_path / "model.pth", **TOLD)
    ours = keras_vit.from_pretrained(tmp_path / "model.pth", **hints)
    images = random_images(32, 32)
    assert_close(compute(ours, [images]), run(theirs, images).numpy())
    kind = "embedding" if family == "eva_clip" else "classes"  # The head of CLIP is a projection.
    checkpoint = open_checkpoint(tmp_path / "model.pth", family=hints["family"], num_heads=3, grid_size=(4, 4))
    assert checkpoint.output.kind == kind
    expected = keras_vit.weights.catalogue.FAMILIES[family or "deit"]
    assert keras_vit.describe(ours).pixels["mean"] == list(expected.mean)
    assert keras_vit.describe(ours).config.position_interpolation == expected.position_interpolation
