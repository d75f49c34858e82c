"""Catalogue entries of EVA, EVA-02, EVA-CLIP and EVA-02-CLIP. Source: timm 1.0.31 and its table of results."""

import re

from keras_vit.weights.catalogue_entry import EVA_ROTARY, IMAGENET_PIXELS, timm_entry

_LICENCE = "MIT"
_NAME = re.compile(r"eva(?:02)?_(?P<size>[a-z]+)_patch(?P<patch>\d+)_(?:clip_)?(?P<pixels>\d+)\.(?P<tag>\w+)")
_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "giant": "g", "enormous": "E"}
_HEAD = {"pooling": "avg", "class_token": True, "norm_placement": "after_pooling"}
_SWIGLU = {"rotary": EVA_ROTARY, "qkv_bias": "no_key", "mlp": "swiglu"}
_SUB_LN = {
    "Ti/14": {},
    "S/14": {"mlp_dim": 1024},
    "B/14": {"mlp_dim": 2048, "mlp_inner_norm": True},
    "B/16": {"mlp_dim": 2048, "mlp_inner_norm": True},
    "L/14": {"mlp_dim": 2730, "mlp_inner_norm": True},
}

# (timm's name, crop ratio, whether images are squashed, top-1)
_EVA02 = (
    ("eva02_tiny_patch14_224.mim_in22k", 0.9, False, None),
    ("eva02_tiny_patch14_336.mim_in22k_ft_in1k", 1.0, False, 80.65),
    ("eva02_small_patch14_224.mim_in22k", 0.9, False, None),
    ("eva02_small_patch14_336.mim_in22k_ft_in1k", 1.0, False, 85.77),
    ("eva02_base_patch14_224.mim_in22k", 0.9, False, None),
    ("eva02_base_patch14_448.mim_in22k_ft_in1k", 1.0, False, 88.26),
    ("eva02_base_patch14_448.mim_in22k_ft_in22k", 1.0, True, None),
    ("eva02_base_patch14_448.mim_in22k_ft_in22k_in1k", 1.0, True, 88.68),
    ("eva02_large_patch14_224.mim_in22k", 0.9, False, None),
    ("eva02_large_patch14_224.mim_m38m", 0.9, False, None),
    ("eva02_large_patch14_448.mim_in22k_ft_in1k", 1.0, False, 89.63),
    ("eva02_large_patch14_448.mim_in22k_ft_in22k", 1.0, True, None),
    ("eva02_large_patch14_448.mim_in22k_ft_in22k_in1k", 1.0, True, 89.96),
    ("eva02_large_patch14_448.mim_m38m_ft_in1k", 1.0, False, 89.55),
    ("eva02_large_patch14_448.mim_m38m_ft_in22k", 1.0, True, None),
    ("eva02_large_patch14_448.mim_m38m_ft_in22k_in1k", 1.0, True, 90.06),
)
_EVA = (
    ("eva_large_patch14_196.in22k_ft_in1k", 1.0, False, 87.95),
    ("eva_large_patch14_196.in22k_ft_in22k_in1k", 1.0, False, 88.59),
    ("eva_large_patch14_336.in22k_ft_in1k", 1.0, True, 88.68),
    ("eva_large_patch14_336.in22k_ft_in22k_in1k", 1.0, True, 89.24),
    ("eva_giant_patch14_224.clip_ft_in1k", 0.9, False, 88.90),
    ("eva_giant_patch14_336.clip_ft_in1k", 1.0, True, 89.46),
    ("eva_giant_patch14_336.m30m_ft_in22k_in1k", 1.0, True, 89.57),
    ("eva_giant_patch14_560.m30m_ft_in22k_in1k", 1.0, True, 89.79),
)
# (timm's name, crop ratio, width of the projection)
_CLIP = (
    ("eva_giant_patch14_clip_224.laion400m", 0.9, 1024),
    ("eva_giant_patch14_clip_224.merged2b", 0.9, 1024),
    ("eva02_base_patch16_clip_224.merged2b", 0.9, 512),
    ("eva02_large_patch14_clip_224.merged2b", 0.9, 768),
    ("eva02_large_patch14_clip_336.merged2b", 1.0, 768),
    ("eva02_enormous_patch14_clip_224.laion2b", 0.9, 1024),
    ("eva02_enormous_patch14_clip_224.laion2b_plus", 0.9, 1024),
)


def eva_entries():
    """Yields all entries."""
    for name, crop, squash, top1 in _EVA02:
        variant, weights, image_size = _facts(name)
        classes = {"in1k": 1000, "in22k": 21841}[name.rpartition("_")[2]] if "_ft_" in name else 0
        facts = {"classes": classes, "licence": _LICENCE, **_SWIGLU, **_SUB_LN[variant], **_HEAD}
        weights = f"eva02-{weights}"
        yield timm_entry(variant, weights, name, "eva02", "2303.11331", image_size, crop, squash, top1, **facts)
    for name, crop, squash, top1 in _EVA:
        variant, weights, image_size = _facts(name)
        # The large model is a plain Vision Transformer.
        biases = {"qkv_bias": "no_key"} if variant == "g/14" else {}
        facts = {
            "pixels": IMAGENET_PIXELS if "m30m" in name else {},
            "classes": 1000,
            "licence": _LICENCE,
            **biases,
            **_HEAD,
        }
        yield timm_entry(variant, f"eva-{weights}", name, "eva", "2211.07636", image_size, crop, squash, top1, **facts)
    for name, crop, width in _CLIP:
        variant, weights, image_size = _facts(name)
        model = name.partition("_")[0]
        facts = {"classes": width, "has_projection": True, "licence": _LICENCE, **_clip_changes(model, variant)}
        yield timm_entry(variant, f"{model}-clip-{weights}", name, "eva_clip", "2303.15389", image_size, crop, **facts)


def _facts(name):
    """(variant, name of the weights, image size) for a name of timm. The name of the weights omits `mim` and `ft`."""
    parts = _NAME.fullmatch(name).groupdict()  # type: ignore[union-attr]
    words = [word for word in parts["tag"].split("_") if word not in ("mim", "ft")]
    return f"{_SIZES[parts['size']]}/{parts['patch']}", "-".join([*words, parts["pixels"]]), int(parts["pixels"])


def _clip_changes(model, variant):
    if variant == "E/14":
        return {"qkv_bias": "no_key", "block_norm": "post"}
    if model == "eva":
        return {"qkv_bias": "no_key"}
    return {**_SWIGLU, **_SUB_LN[variant], "attention_inner_norm": True}
