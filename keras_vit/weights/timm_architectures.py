"""What the name of one of timm's architectures says, and the arrays of its files do not.

A `config.json` of timm holds that name, and in `model_args` the arguments that differ from the architecture's own. Some
parts of a model have no array: rotary positions, windows, activations. So an architecture is read only if its name and
its arguments are in these tables. `make support-matrix` compares each structure that is read with timm.
"""

import re

from keras_vit.checks import did_you_mean
from keras_vit.weights.expressible import ANY

_READABLE = (
    r"vit_(tiny|small|base|large|huge|giant|gigantic)_patch\d+_\d+",  # ViT, AugReg (arXiv 2106.10270)
    r"vit_small_patch16_36x1_\d+",
    r"vit_base_patch\d+_plus_\d+",
    r"vit_[a-z0-9]+_patch\d+(_plus)?_clip(_quickgelu)?_\d+",  # CLIP (arXiv 2103.00020)
    r"vit_[a-z0-9]+_patch\d+_siglip(_gap)?_\d+",  # SigLIP (arXiv 2303.15343)
    r"vit_[a-z0-9]+_patch14(_reg4)?_dinov2",  # DINOv2 (arXiv 2304.07193)
    r"vit_[a-z0-9]+_patch14_reg1_tipsv2",
    r"vit_(base|huge|giant)_patch\d+_gap_\d+",  # I-JEPA (arXiv 2301.08243)
    r"vit_(wee|little|medium|mediumd|betwixt|base)_patch16_reg[14]_gap_\d+",
    r"flexivit_(small|base|large)",  # FlexiViT (arXiv 2212.08013)
    r"deit3?_(tiny|small|medium|base|large|huge)(_distilled)?_patch\d+_\d+",  # DeiT (arXiv 2012.12877, 2204.07118)
    r"eva_large_patch14_\d+",  # EVA (arXiv 2211.07636): its L is a plain ViT.
    r"vit_tiny_r_s16_p8_\d+|vit_(small|base)_r26_s32_\d+|vit_(base|large)_r50_s(16|32)_\d+",
)
# What others have, the first that fits.
_KINDS = (
    (r"^eva|_dinov3|_rope|_pe_|_lingbot|_sapiens", "rotary positions"),
    (r"^beit3|^aimv2", "norms inside its blocks"),
    (r"^beit|_s?relpos", "relative positions"),
    (r"^samvit", "windowed attention"),
    (r"_18x2|_xp_|_pwee|_dpwee", "parallel blocks"),
    (r"_d(wee|little)", "differential attention"),
    (r"_radio", "patches of several resolutions"),
    (r"_rpn_", "norms behind the branches"),
    (r"_miil|_(medium|betwixt)_patch16_gap", "queries, keys and values without biases"),
    (r"_so150m", "positions of its register tokens"),
    (r"_intern", "no norm behind the encoder"),
    (r"_resnet|_mci|^vitamin", "a stem that is none of Google's hybrids"),
)
_ARGUMENTS = {
    **dict.fromkeys(("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads"), ANY),
    **dict.fromkeys(("mlp_ratio", "init_values", "reg_tokens", "act_layer", "global_pool"), ANY),
    **dict.fromkeys(("class_token", "no_embed_class", "qk_norm", "pre_norm", "dynamic_img_size"), (False, True)),
    "fc_norm": (None, False, True),
    "pos_embed": ("learn", "none", ""),
    "qkv_bias": (True,),
    "proj_bias": (True,),
    "final_norm": (True,),
    "norm_layer": (None, "layernorm"),
    **dict.fromkeys(("scale_attn_norm", "scale_mlp_norm", "pool_include_prefix", "dynamic_img_pad"), (False,)),
    # Of training.
    **dict.fromkeys(("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"), ANY),
    **dict.fromkeys(("drop_path_rate", "weight_init", "fix_init"), ANY),
}
"""{argument of timm's `VisionTransformer`: values that are read}"""
_STRUCTURE = ("patch_size", "embed_dim", "depth", "num_heads")
"""Arguments that show that an owner's own architecture is timm's `VisionTransformer`."""

# The first that fits; else by the name of the size.
_NUM_HEADS = (
    (r"vit_base_patch16_gap_224", 16),
    (r"_giant_patch14_.*(dinov2|tipsv2)", 24),
    (r"_plus_", 14),
)
_NUM_HEADS_BY_SIZE = {
    **{"tiny": 3, "xsmall": 4, "wee": 4, "little": 5, "small": 6, "medium": 8, "mediumd": 8, "betwixt": 10, "base": 12},
    **dict.fromkeys(("large", "so400m", "huge", "giant", "giantopt", "gigantic"), 16),
}
_ACTIVATIONS = (
    (r"quickgelu", "quick_gelu"),
    (r"(base_patch32|so400m_patch16|giantopt_patch16)_siglip|large_patch16_siglip_(gap_)?512", "gelu_tanh"),
    (r"", "gelu_exact"),
)


def check_architecture(config):
    """Refuses the `config.json` of an architecture that is not read.

    Args:
        config: Contents of the file.

    Raises:
        ValueError: If the architecture or one of its arguments is in no table; the message says what it has.
    """
    architecture, arguments = config["architecture"], config.get("model_args", {})
    is_readable = any(re.fullmatch(pattern, architecture) for pattern in _READABLE)
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, architecture)), None)
    if not is_readable and kind:
        raise ValueError(f"timm's {architecture} has {kind}, which this package does not compute.")
    if not is_readable and not all(name in arguments for name in _STRUCTURE):
        raise ValueError(
            f"{architecture!r} is no architecture of timm that is known. If it is timm's VisionTransformer, put its "
            f"arguments into model_args of config.json, at least {', '.join(_STRUCTURE)}."
        )
    for name, value in arguments.items():
        if name not in _ARGUMENTS:
            hint = did_you_mean(name, _ARGUMENTS)
            raise ValueError(f"model_args of config.json has {name}={value!r}, which is not known.{hint}")
        accepted = _ARGUMENTS[name]
        if accepted is not ANY and value not in accepted:
            raise ValueError(
                f"model_args of config.json has {name}={value!r}. This package computes {name}="
                f"{' or '.join(map(repr, accepted))} only."
            )


def num_heads_of(architecture):
    """Attention heads of an architecture whose arguments do not say them; `None` if its name does not tell."""
    heads = next((heads for pattern, heads in _NUM_HEADS if re.search(pattern, architecture)), None)
    size = re.match(r"[a-z0-9]+_([a-z0-9]+)", architecture)
    return heads or (size and _NUM_HEADS_BY_SIZE.get(size[1]))


def activation_of(architecture):
    """`ViTConfig.mlp` of an architecture whose arguments do not name an activation."""
    return next(mlp for name, mlp in _ACTIVATIONS if re.search(name, architecture))
