"""Catalogue entries of weights that timm's authors trained, of ImageNet-21K-P, and of RoPE-ViT.

Source: timm 1.0.31 and its table of results. In names, `in12k` means a subset of ImageNet-22k with 11,821 classes.
timm's models `sbb` have registers (`reg1`, `reg4`) and no class token.
"""

import dataclasses
import re

from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.weights.catalogue_entry import CLASSES_BY_TAG, CLIP_PIXELS, EVA_ROTARY, timm_entry

_NAME = re.compile(r"vit_(?P<size>[a-z0-9]+)_patch16_(?P<kind>(?:rope_)?reg\d)_gap_(?P<pixels>\d+)\.(?P<tag>\w+)")
_SIZES = {"medium": "M", "base": "B", "so150m": "So150m", "so150m2": "So150m2"}

# (timm's name, crop ratio, whether images are squashed, top-1)
_SBB = (
    ("vit_wee_patch16_reg1_gap_256.sbb_in1k", 0.95, False, 80.26),
    ("vit_little_patch16_reg1_gap_256.sbb_in12k", 0.95, False, None),
    ("vit_little_patch16_reg1_gap_256.sbb_in12k_ft_in1k", 0.95, False, 83.80),
    ("vit_little_patch16_reg4_gap_256.sbb_in1k", 0.95, False, 82.52),
    ("vit_medium_patch16_reg1_gap_256.sbb_in1k", 0.95, False, 83.46),
    ("vit_medium_patch16_reg4_gap_256.sbb_in1k", 0.95, False, 83.47),
    ("vit_medium_patch16_reg4_gap_256.sbb_in12k", 0.95, False, None),
    ("vit_medium_patch16_reg4_gap_256.sbb_in12k_ft_in1k", 0.95, False, 84.96),
    ("vit_medium_patch16_rope_reg1_gap_256.sbb_in1k", 0.95, False, 83.81),
    ("vit_mediumd_patch16_reg4_gap_256.sbb_in12k", 0.95, False, None),
    ("vit_mediumd_patch16_reg4_gap_256.sbb_in12k_ft_in1k", 0.95, False, 86.20),
    ("vit_mediumd_patch16_reg4_gap_256.sbb2_e200_in12k", 0.95, False, None),
    ("vit_mediumd_patch16_reg4_gap_256.sbb2_e200_in12k_ft_in1k", 0.95, False, 86.61),
    ("vit_mediumd_patch16_reg4_gap_384.sbb2_e200_in12k_ft_in1k", 1.0, False, 87.44),
    ("vit_mediumd_patch16_rope_reg1_gap_256.sbb_in1k", 0.95, False, 84.32),
    ("vit_betwixt_patch16_reg1_gap_256.sbb_in1k", 0.95, False, 83.65),
    ("vit_betwixt_patch16_reg4_gap_256.sbb_in1k", 0.95, False, 83.71),
    ("vit_betwixt_patch16_reg4_gap_256.sbb_in12k", 0.95, False, None),
    ("vit_betwixt_patch16_reg4_gap_256.sbb_in12k_ft_in1k", 0.95, False, 85.43),
    ("vit_betwixt_patch16_reg4_gap_256.sbb2_e200_in12k", 0.95, False, None),
    ("vit_betwixt_patch16_reg4_gap_256.sbb2_e200_in12k_ft_in1k", 0.95, False, 85.73),
    ("vit_betwixt_patch16_reg4_gap_384.sbb2_e200_in12k_ft_in1k", 1.0, False, 86.62),
    ("vit_betwixt_patch16_rope_reg4_gap_256.sbb_in1k", 0.95, False, 83.91),
    ("vit_base_patch16_rope_reg1_gap_256.sbb_in1k", 0.95, False, 83.87),
    ("vit_so150m_patch16_reg4_gap_256.sbb_e250_in12k", 0.95, False, None),
    ("vit_so150m_patch16_reg4_gap_256.sbb_e250_in12k_ft_in1k", 0.95, False, 86.72),
    ("vit_so150m_patch16_reg4_gap_384.sbb_e250_in12k_ft_in1k", 1.0, False, 87.37),
    ("vit_so150m2_patch16_reg1_gap_256.sbb_e200_in12k", 1.0, False, None),
    ("vit_so150m2_patch16_reg1_gap_256.sbb_e200_in12k_ft_in1k", 1.0, False, 87.32),
    ("vit_so150m2_patch16_reg1_gap_384.sbb_e200_in12k_ft_in1k", 1.0, False, 87.93),
    ("vit_so150m2_patch16_reg1_gap_448.sbb_e200_in12k_ft_in1k", 1.0, True, 88.07),
)
_AXIAL = RotaryConfig(base=100.0, layout="interleaved", coordinates="grid", axis_order="xy")
_MIXED = dataclasses.replace(_AXIAL, kind="mixed", base=10.0)


def timm_entries():
    """Yields all entries."""
    for row in _SBB:
        yield _sbb_entry(*row)
    changes = {"pooling": "avg", "qkv_bias": "none", "layer_scale": 1e-6}
    for image_size, tag, crop, squash, top1 in (
        (240, "in12k", 0.95, False, None),
        (256, "in12k_ft_in1k", 0.95, False, 84.44),
        (384, "in12k_ft_in1k", 0.95, True, 85.56),
    ):
        name = f"vit_medium_patch16_gap_{image_size}.sw_{tag}"
        weights = f"gap-{tag.replace('_ft_', '-')}-{image_size}"
        facts = {"classes": CLASSES_BY_TAG[tag.rpartition("_")[2]], **changes}
        yield timm_entry("M/16", weights, name, "timm", None, image_size, crop, squash, top1, **facts)
    changes = {"pooling": "avg", "norm_placement": "after_pooling", "qkv_bias": "none", "block_norm": "post"}
    name = "vit_base_patch16_rpn_224.sw_in1k"
    yield timm_entry("B/16", "rpn-in1k-224", name, "timm", None, 224, 0.9, False, 82.22, classes=1000, **changes)
    yield from _miil_entries()
    yield from _rope_vit_entries()


def _sbb_entry(name, crop, squash, top1):
    parts = _NAME.fullmatch(name).groupdict()  # type: ignore[union-attr]
    size, image_size = _SIZES.get(parts["size"], parts["size"]), int(parts["pixels"])
    has_rotary, num_registers = parts["kind"].startswith("rope"), int(parts["kind"][-1])
    changes = {"pooling": "avg", "num_register_tokens": num_registers}
    if size != "So150m":
        changes |= {"layer_scale": 1e-5, "norm_placement": "after_pooling"}
    if size in ("So150m", "So150m2"):
        changes["num_position_prefix_rows"] = num_registers
    if has_rotary:
        changes |= {"position_embedding": "none", "rotary": EVA_ROTARY, "qkv_bias": "no_key"}
    if size == "So150m2" or (has_rotary and size == "mediumd"):
        changes["qkv_bias"] = "none"
    training, *words = (word for word in parts["tag"].split("_") if word != "ft")
    facts = {
        "classes": CLASSES_BY_TAG[words[-1]],
        "licence": "MIT" if has_rotary else "Apache-2.0",
        "pixels": CLIP_PIXELS if (size, has_rotary) == ("betwixt", True) else {},
    }
    weights = "-".join([training, parts["kind"].replace("_", "-"), *words, parts["pixels"]])
    return timm_entry(f"{size}/16", weights, name, "timm", None, image_size, crop, squash, top1, **facts, **changes)


def _miil_entries():
    for tag, classes, top1 in (("in21k", 11221, None), ("in21k_ft_in1k", 1000, 84.28)):
        name, weights = f"vit_base_patch16_224_miil.{tag}", f"miil-{tag.replace('_ft_', '-')}-224"
        facts = {"classes": classes, "pixels": {"interpolation": "bilinear"}, "qkv_bias": "none"}
        yield timm_entry("B/16", weights, name, "miil", "2104.10972", 224, 0.875, False, top1, **facts)


def _rope_vit_entries():
    axial, mixed = {"rotary": _AXIAL}, {"rotary": _MIXED}
    alone, beside_table = {"position_embedding": "none"}, {"num_position_prefix_rows": 0}
    for kind, changes, figures in (
        ("rope", axial | alone, (81.22, 83.71, 84.65)),
        ("rope_ape", axial | beside_table, (81.02, 83.78, 84.66)),
        ("rope_mixed", mixed | alone, (81.25, 83.81, 84.84)),
        ("rope_mixed_ape", mixed | beside_table, (80.97, 83.90, 84.85)),
    ):
        facts = {"classes": 1000, "layer_scale": 1e-5, **changes}
        for size, top1 in zip(("small", "base", "large"), figures, strict=True):
            variant, weights = f"{size[0].upper()}/16", f"{kind.replace('_', '-')}-in1k"
            name = f"vit_{size}_patch16_{kind}_224.naver_in1k"
            yield timm_entry(variant, weights, name, "rope_vit", "2403.13298", 224, 0.9, False, top1, **facts)
