"""Image towers of OpenCLIP and Perception Encoder load. The expected outputs are those of timm, which converts them."""

import json

import pytest
import timm
import torch
from timm.models.eva import _convert_pe
from timm.models.vision_transformer import _convert_openai_clip

import keras_vit
from tests.peers.torch_models import random_images, randomize, run
from tests.test_case import assert_close, compute, slow_except

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 1.5}
VISION = {"image_size": 32, "layers": 2, "width": 24, "head_width": 8, "mlp_ratio": 1.5, "patch_size": 8}
TINY = {"num_heads": 3, "grid_size": (4, 4)}
CONFIG = {"model_cfg": {"embed_dim": 10, "vision_cfg": VISION, "text_cfg": {}}}
PIXELS = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "interpolation": "bilinear", "resize_mode": "squash"}
TEXT = {"text_projection": (6, 10), "positional_embedding": (7, 6), "logit_scale": (), "token_embedding.weight": (9, 6)}
TEXT |= {"transformer.resblocks.0.ln_1.weight": (6,)}


def shapes(num_rows=17, class_token=True, scales=False, final_norm=True, projection=10):
    """{name: shape} of an image tower."""
    found = {"conv1.weight": (24, 3, 8, 8), "positional_embedding": (num_rows, 24)}
    found |= {"class_embedding": (24,)} if class_token else {}
    norms = ["ln_pre", *(f"transformer.resblocks.{i}.ln_{n}" for i in (0, 1) for n in (1, 2))]
    for norm in [*norms, "ln_post"] if final_norm else norms:
        found |= {f"{norm}.weight": (24,), f"{norm}.bias": (24,)}
    for block in ("transformer.resblocks.0.", "transformer.resblocks.1."):
        found |= block_shapes(f"{block}attn", f"{block}mlp", 36)
        found |= {f"{block}ls_{number}.gamma": (24,) for number in (1, 2)} if scales else {}
    return {**found, "proj": (24, projection)} if projection else found


def block_shapes(attention, mlp, mlp_dim):
    names = {"in_proj_weight": (72, 24), "in_proj_bias": (72,), "out_proj.weight": (24, 24), "out_proj.bias": (24,)}
    mlp_names = {"c_fc.weight": (mlp_dim, 24), "c_fc.bias": (mlp_dim,)}
    mlp_names |= {"c_proj.weight": (24, mlp_dim), "c_proj.bias": (24,)}
    return {f"{attention}.{name}": shape for name, shape in names.items()} | {
        f"{mlp}.{name}": shape for name, shape in mlp_names.items()
    }


def pool_shapes():
    norm = {"attn_pool.layernorm.weight": (24,), "attn_pool.layernorm.bias": (24,), "attn_pool.probe": (1, 1, 24)}
    return {**norm, **block_shapes("attn_pool.attn", "attn_pool.mlp", 96)}


def arrays(named_shapes):
    generator = torch.Generator().manual_seed(3)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in named_shapes.items()}


def with_text(state):
    return {**{f"visual.{name}": value for name, value in state.items()}, **arrays(TEXT)}


def converted(architecture, state, convert, **arguments):
    """timm's model with the weights of a state."""
    model = timm.create_model(architecture, **SIZES, **arguments)
    model.load_state_dict(convert(state, model))
    return model.eval()


def load(folder, state, config=None, **arguments):
    torch.save(state, folder / "open_clip_pytorch_model.bin")
    if config is not None:
        (folder / "open_clip_config.json").write_text(json.dumps(config))
    return keras_vit.from_pretrained(folder, **arguments)


@pytest.mark.parametrize(
    ("architecture", "config", "arguments"),
    [
        ("vit_base_patch16_clip_224", CONFIG, {}),
        ("vit_base_patch16_clip_quickgelu_224", {**CONFIG["model_cfg"], "quick_gelu": True}, {}),
        ("vit_base_patch16_clip_quickgelu_224", None, {"family": "clip", **TINY}),
    ],
)
def test_open_clip(architecture, config, arguments, tmp_path):
    state = with_text(arrays(shapes()))
    theirs = converted(architecture, state, _convert_openai_clip, num_classes=10)
    ours = load(tmp_path, state, config, **arguments)
    images = random_images(32, 32)
    assert_close(compute(ours, [images]), run(theirs, images).numpy())
    report = keras_vit.load_weights(ours, tmp_path, family=arguments.get("family"), grid_size=(4, 4))
    assert set(report.skipped) == set(TEXT)


PERCEPTION_ENCODERS = {
    "core": (
        "vit_pe_core_base_patch16_224",
        {**shapes(), **pool_shapes()},
        {"num_classes": 10, "ref_feat_shape": (4, 4)},
    ),
    "lang": (
        "vit_pe_lang_large_patch14_448",
        shapes(scales=True, final_norm=False, projection=None),
        {"num_classes": 0, "global_pool": "", "ref_feat_shape": (4, 4)},
    ),
}


@pytest.mark.parametrize("name", slow_except(["core"], PERCEPTION_ENCODERS))
def test_perception_encoder(name, tmp_path):
    """The names show the family. The files of the Core models also contain a text tower."""
    architecture, named_shapes, arguments = PERCEPTION_ENCODERS[name]
    state = arrays(named_shapes)
    theirs = converted(architecture, state, lambda state, model: _convert_pe(state, model, ""), **arguments)
    ours = load(tmp_path, with_text(state) if name != "lang" else state, **TINY)
    images = random_images(32, 32)
    assert_close(compute(ours, [images]), run(theirs, images).numpy())
    other = keras_vit.from_pretrained(tmp_path, **TINY, input_shape=(24, 40, 3))
    theirs.set_input_size(img_size=(24, 40))
    images = random_images(24, 40)
    assert_close(compute(other, [images]), run(theirs, images).numpy())


@pytest.mark.parametrize(
    ("architecture", "vision", "projection"),
    [
        ("vit_base_patch16_siglip_224", {"timm_pool": "map", "timm_proj": "none"}, None),
        ("vit_base_patch16_clip_224", {"timm_pool": "token"}, 10),
        ("eva02_base_patch16_clip_224", {"timm_pool": "token", "timm_proj": None}, None),
    ],
)
def test_tower_of_timm(architecture, vision, projection, tmp_path):
    classes = 7 if architecture.startswith("eva") else 0
    sizes = {**SIZES, "mlp_ratio": 2.0}
    theirs = randomize(timm.create_model(architecture, **sizes, num_classes=classes))
    state = {f"trunk.{name}": value for name, value in theirs.state_dict().items()}
    if projection:
        state["head.proj.weight"] = torch.randn((projection, 24), generator=torch.Generator().manual_seed(1))
    model = {"embed_dim": 10, "vision_cfg": {**vision, "timm_model_name": architecture, "image_size": 32}}
    ours = load(tmp_path, with_text(state), {"model_cfg": model, "preprocess_cfg": PIXELS}, num_heads=3)
    images = random_images(32, 32)
    expected = run(theirs, images)
    assert_close(compute(ours, [images]), expected @ state["head.proj.weight"].T if projection else expected)
    assert keras_vit.describe(ours).pixels == {
        **{"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "resize": [32, 32], "crop": None},
        **{"interpolation": "bilinear", "normalize": False},
    }
