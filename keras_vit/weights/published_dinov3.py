"""Catalogue entries of DINOv3, and of EUPE and LingBot-Vision, which have the same architecture.

Sources: timm 1.0.31, and the README of facebookresearch/dinov3. Meta sends the addresses of its own `.pth` files to
users who have accepted the licence, so these files have no entries.

timm has two files of each DINOv3 model: one without biases of queries and values, and one with these biases, which are
zero (`-qkvb`).
"""

from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.weights.catalogue_entry import build_entry, timm_entry

_BLOCKS = {"position_embedding": "none", "rotary": RotaryConfig(), "num_register_tokens": 4, "layer_scale": 1e-5}
_TIMM = {"pooling": "avg", "class_token": True}  # Meta's code returns the class token instead.


def dinov3_entries():
    """Yields all entries."""
    for variant, timm_size, hub_size, mlp, *data_sets in (
        ("S/16", "small", "s16", {}, "lvd1689m"),
        ("S+/16", "small_plus", "s16plus", {"mlp": "swiglu"}, "lvd1689m"),
        ("B/16", "base", "b16", {}, "lvd1689m"),
        ("L/16", "large", "l16", {}, "lvd1689m", "sat493m"),
        ("H+/16", "huge_plus", "h16plus", {"mlp": "swiglu"}, "lvd1689m"),
        ("7B/16", "7b", "7b16", {"mlp": "swiglu"}, "lvd1689m", "sat493m"),
    ):
        for data in data_sets:
            yield from _dinov3_files(variant, timm_size, hub_size, data, _BLOCKS | mlp)
    for variant, size in (("Ti/16", "tiny"), ("S/16", "small"), ("B/16", "base")):
        name = f"vit_{size}_patch16_dinov3_qkvb.eupe_lvd1689m"
        facts = {"licence": "fair-noncommercial-research-license", "qkv_bias": "no_key", **_BLOCKS, **_TIMM}
        yield timm_entry(variant, "eupe-lvd1689m", name, "dinov3", "2603.22387", 256, **facts)
    for variant, size, changes in (
        ("S/16", "small", {"qkv_bias": "no_key"}),
        ("B/16", "base", {"qkv_bias": "no_key"}),
        ("L/16", "large", {"qkv_bias": "no_key"}),
        ("g-swiglu/16", "giant", {"qkv_bias": "none", "mlp": "swiglu"}),
    ):
        name = f"belfner/vit_{size}_patch16_lingbot.robbyant"
        facts = {"squash": True, "pixels": {"interpolation": "bilinear"}, **_BLOCKS, **changes}
        yield timm_entry(variant, "lingbot", name, "dinov3", "2607.05247", 512, **facts)


def _dinov3_files(variant, timm_size, hub_size, data, changes):
    family = "dinov3_sat" if data == "sat493m" else "dinov3"
    weights, paper, facts = f"dinov3-{data}", "2508.10104", {"licence": "dinov3-license", **changes}
    has_biases = variant != "7B/16"
    name = f"vit_{timm_size}_patch16_dinov3"
    yield timm_entry(variant, weights, f"{name}.{data}", family, paper, 256, qkv_bias="none", **facts, **_TIMM)
    if has_biases:
        name = f"{name}_qkvb.{data}"
        yield timm_entry(variant, f"{weights}-qkvb", name, family, paper, 256, qkv_bias="no_key", **facts, **_TIMM)
    url = f"hf://facebook/dinov3-vit{hub_size}-pretrain-{data}"
    facts |= {"gated": True, "qkv_bias": "no_key" if has_biases else "none"}
    yield build_entry(variant, f"{weights}-huggingface", url, "huggingface", family, paper, **facts)
