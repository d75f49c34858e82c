"""Catalogue entries of image encoders of image-text models: CLIP and its successors, TIPSv2, InternViT.

Source: timm 1.0.31 and its table of results. Some weights were trained with QuickGELU. For these weights, timm
has an architecture with the exact GELU and one with QuickGELU. timm recommends QuickGELU for the original results.
"""

import re

from keras_vit.architectures.spellings import SIZE_NAMES
from keras_vit.weights.catalogue_entry import CLASSES_BY_TAG, split_variant, timm_entry

_NAME = re.compile(r"vit_(?P<size>[a-z]+)_patch(?P<patch>\d+)(?P<plus>_plus)?_clip_(?P<pixels>\d+)\.(?P<tag>\w+)")
_SIZES = {
    **{"xsmall": "xsmall", "medium": "M", "betwixt": "betwixt", "base": "B", "large": "L", "huge": "H"},
    **{"giant": "g", "gigantic": "G"},
}
# {last word of timm's name: number of outputs of a fine-tuned model's head} and {size: width of the projection}
_WIDTHS = {"xsmall": 512, "M": 512, "betwixt": 512, "B": 512, "B+": 640, "L": 768, "H": 1024, "g": 1024, "G": 1280}
# {start of the tag in timm's name: (paper, licence)}. The first entry that fits is used.
_PUBLICATIONS = {
    "openai": ("2103.00020", "Apache-2.0"),
    "laion2b": ("2212.07143", "Apache-2.0"),
    "laion400m": ("2212.07143", "MIT"),
    "datacompxl": ("2304.14108", "Apache-2.0"),
    "dfn": ("2309.17425", "apple-ascl"),
    "metaclip_altogether": ("2410.17251", "CC-BY-NC-4.0"),
    "metaclip_": ("2309.16671", "CC-BY-NC-4.0"),
    "metaclip2": ("2507.22062", "CC-BY-NC-4.0"),
    "tinyclip": ("2309.12314", "MIT"),
    "apple_mclip2": ("2508.20691", "apple-amlr"),
}

# (timm's name, crop ratio), and for fine-tuned weights (timm's name, crop ratio, whether images are squashed, top-1)
_QUICK_GELU = (
    ("vit_base_patch16_clip_224.metaclip_2pt5b", 1.0),
    ("vit_base_patch16_clip_224.metaclip_400m", 1.0),
    ("vit_base_patch16_clip_224.openai", 0.9),
    ("vit_base_patch32_clip_224.laion400m_e32", 0.9),
    ("vit_base_patch32_clip_224.metaclip_2pt5b", 1.0),
    ("vit_base_patch32_clip_224.metaclip_400m", 1.0),
    ("vit_base_patch32_clip_224.openai", 0.9),
    ("vit_gigantic_patch14_clip_224.metaclip_2pt5b", 1.0),
    ("vit_huge_patch14_clip_224.dfn5b", 1.0),
    ("vit_huge_patch14_clip_224.metaclip2_worldwide", 1.0),
    ("vit_huge_patch14_clip_224.metaclip_2pt5b", 1.0),
    ("vit_huge_patch14_clip_378.dfn5b", 1.0),
    ("vit_large_patch14_clip_224.dfn2b", 1.0),
    ("vit_large_patch14_clip_224.metaclip_2pt5b", 1.0),
    ("vit_large_patch14_clip_224.metaclip_400m", 1.0),
    ("vit_large_patch14_clip_224.openai", 1.0),
    ("vit_large_patch14_clip_336.openai", 1.0),
)
_EXACT_GELU = (
    ("vit_base_patch16_clip_224.datacompxl", 1.0),
    ("vit_base_patch16_clip_224.dfn2b", 1.0),
    ("vit_base_patch16_clip_224.laion2b", 1.0),
    ("vit_base_patch16_clip_224.laion400m_e32", 1.0),
    ("vit_base_patch16_plus_clip_240.laion400m_e32", 1.0),
    ("vit_base_patch32_clip_224.datacompxl", 1.0),
    ("vit_base_patch32_clip_224.laion2b", 0.9),
    ("vit_base_patch32_clip_256.datacompxl", 1.0),
    ("vit_betwixt_patch32_clip_224.tinyclip_laion400m", 0.9),
    ("vit_giant_patch14_clip_224.laion2b", 1.0),
    ("vit_gigantic_patch14_clip_224.laion2b", 1.0),
    ("vit_gigantic_patch14_clip_224.metaclip2_worldwide", 1.0),
    ("vit_gigantic_patch14_clip_378.metaclip2_worldwide", 1.0),
    ("vit_huge_patch14_clip_224.laion2b", 1.0),
    ("vit_huge_patch14_clip_224.metaclip_altogether", 1.0),
    ("vit_huge_patch14_clip_378.metaclip2_worldwide", 1.0),
    ("vit_large_patch14_clip_224.apple_mclip2_dfndr2b", 1.0),
    ("vit_large_patch14_clip_224.datacompxl", 1.0),
    ("vit_large_patch14_clip_224.dfn2b_s39b", 1.0),
    ("vit_large_patch14_clip_224.laion2b", 1.0),
    ("vit_large_patch14_clip_224.laion400m_e32", 1.0),
    ("vit_medium_patch16_clip_224.tinyclip_yfcc15m", 0.9),
    ("vit_medium_patch32_clip_224.tinyclip_laion400m", 0.9),
    ("vit_xsmall_patch16_clip_224.tinyclip_yfcc15m", 0.9),
)
_FINE_TUNED = (
    ("vit_base_patch16_clip_224.laion2b_ft_in1k", 1.0, False, 85.49),
    ("vit_base_patch16_clip_224.laion2b_ft_in12k", 0.9, False, None),
    ("vit_base_patch16_clip_224.laion2b_ft_in12k_in1k", 0.95, False, 86.20),
    ("vit_base_patch16_clip_224.openai_ft_in1k", 0.9, False, 85.28),
    ("vit_base_patch16_clip_224.openai_ft_in12k", 0.9, False, None),
    ("vit_base_patch16_clip_224.openai_ft_in12k_in1k", 0.95, False, 85.95),
    ("vit_base_patch16_clip_384.laion2b_ft_in1k", 1.0, True, 86.64),
    ("vit_base_patch16_clip_384.laion2b_ft_in12k_in1k", 1.0, True, 87.21),
    ("vit_base_patch16_clip_384.openai_ft_in1k", 1.0, True, 86.21),
    ("vit_base_patch16_clip_384.openai_ft_in12k_in1k", 0.95, True, 87.03),
    ("vit_base_patch32_clip_224.laion2b_ft_in1k", 0.9, False, 82.61),
    ("vit_base_patch32_clip_224.laion2b_ft_in12k_in1k", 0.9, False, 83.30),
    ("vit_base_patch32_clip_224.openai_ft_in1k", 0.9, False, 81.94),
    ("vit_base_patch32_clip_384.laion2b_ft_in12k_in1k", 1.0, False, 85.40),
    ("vit_base_patch32_clip_384.openai_ft_in12k_in1k", 0.95, True, 85.22),
    ("vit_base_patch32_clip_448.laion2b_ft_in12k_in1k", 1.0, False, 85.79),
    ("vit_huge_patch14_clip_224.laion2b_ft_in1k", 1.0, False, 87.61),
    ("vit_huge_patch14_clip_224.laion2b_ft_in12k", 1.0, False, None),
    ("vit_huge_patch14_clip_224.laion2b_ft_in12k_in1k", 1.0, False, 88.29),
    ("vit_huge_patch14_clip_336.laion2b_ft_in12k_in1k", 1.0, True, 88.63),
    ("vit_large_patch14_clip_224.laion2b_ft_in1k", 1.0, False, 87.29),
    ("vit_large_patch14_clip_224.laion2b_ft_in12k", 1.0, False, None),
    ("vit_large_patch14_clip_224.laion2b_ft_in12k_in1k", 1.0, False, 87.90),
    ("vit_large_patch14_clip_224.openai_ft_in1k", 1.0, False, 87.86),
    ("vit_large_patch14_clip_224.openai_ft_in12k", 1.0, False, None),
    ("vit_large_patch14_clip_224.openai_ft_in12k_in1k", 1.0, False, 88.16),
    ("vit_large_patch14_clip_336.laion2b_ft_in1k", 1.0, True, 87.87),
    ("vit_large_patch14_clip_336.laion2b_ft_in12k_in1k", 1.0, True, 88.19),
    ("vit_large_patch14_clip_336.openai_ft_in12k_in1k", 1.0, True, 88.26),
)


def clip_entries():
    """Yields all entries."""
    for name, crop in _QUICK_GELU:
        yield _clip_entry(name, crop, has_projection=True, mlp="quick_gelu")
    for name, crop in _EXACT_GELU:
        squash = name.endswith("378.metaclip2_worldwide")
        yield _clip_entry(name, crop, squash, has_projection=True)
    for name, crop, squash, top1 in _FINE_TUNED:
        yield _clip_entry(name, crop, squash, top1, classes=CLASSES_BY_TAG[name.rpartition("_")[2]])
    for variant in ("B/14", "L/14", "So400m/14", "g-swiglu/14"):
        size, patch_size = split_variant(variant)
        name = f"vit_{SIZE_NAMES[size.split('-')[0]]}_patch{patch_size}_reg1_tipsv2.webli"
        changes = {"num_register_tokens": 1, "num_position_prefix_rows": 0, "layer_scale": 1.0}
        mlp = {"mlp": "swiglu"} if size == "g-swiglu" else {}
        yield timm_entry(variant, "tipsv2", name, "tipsv2", "2604.12012", 448, **changes, **mlp)
    for tag, paper, licence in (("dist", "2410.16261", "MIT"), ("2pt5", "2412.05271", "Apache-2.0")):
        name = f"vit_intern300m_patch14_448.ogvl_{tag}"
        facts = {"licence": licence, "final_norm": False, "layer_scale": 0.1}
        yield timm_entry("L/14", f"internvit-{tag}", name, "intern", paper, 448, **facts)


def _clip_entry(name, crop, squash=False, top1=None, **facts):
    parts = _NAME.fullmatch(name).groupdict()  # type: ignore[union-attr]
    size = _SIZES[parts["size"]] + ("+" if parts["plus"] else "")
    tag, image_size = parts["tag"], int(parts["pixels"])
    paper, licence = next(facts for start, facts in _PUBLICATIONS.items() if tag.startswith(start))
    words = [word for word in tag.split("_") if word != "ft"]
    if size == "L" and "laion2b" in words:
        facts["pixels"] = {"mean": 0.5, "std": 0.5}
    facts = {"classes": _WIDTHS[size], "licence": licence, "pre_norm": True, **facts}
    variant, weights = f"{size}/{parts['patch']}", "-".join(["clip", *words, parts["pixels"]])
    return timm_entry(variant, weights, name, "open_clip", paper, image_size, crop, squash, top1, **facts)
