"""Settings of timm's models that the arrays of a file do not show, such as the number of heads.

timm's `config.json` contains the name of the architecture. Its `model_args` contain the arguments that differ from the
defaults. Some parts of an architecture, such as rotary positions, windows or activations, cannot be seen in the arrays.
An architecture is therefore read only if its name and arguments are in these tables. `make support-matrix` compares the
results with timm.
"""

import re
import typing

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
    r"eva_large_patch14_\d+",  # EVA (arXiv 2211.07636). EVA-L is a plain ViT.
    r"vit_tiny_r_s16_p8_\d+|vit_(small|base)_r26_s32_\d+|vit_(base|large)_r50_s(16|32)_\d+",
)
# (pattern of architectures that cannot be read, their unsupported feature). The first pattern that matches is used.
_KINDS = (
    (r"^eva|_dinov3|_rope|_pe_|_lingbot|_sapiens", "rotary positions"),
    (r"^beit3|^aimv2", "norms inside its blocks"),
    (r"^beit|_s?relpos", "relative positions"),
    (r"^samvit", "windowed attention"),
    (r"_18x2|_xp_|_pwee|_dpwee", "parallel blocks"),
    (r"_d(wee|little)", "differential attention"),
    (r"_radio", "patches of several resolutions"),
    (r"_rpn_", "norms after the branches"),
    (r"_miil|_(medium|betwixt)_patch16_gap", "queries, keys and values without biases"),
    (r"_so150m", "positions of its register tokens"),
    (r"_intern", "no norm after the encoder"),
    (r"_resnet|_mci|^vitamin", "a stem that differs from those of Google's hybrids"),
)
_ARGUMENTS: dict[str, typing.Any] = {
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
    # These affect only training.
    **dict.fromkeys(("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"), ANY),
    **dict.fromkeys(("drop_path_rate", "weight_init", "fix_init"), ANY),
}
"""{argument of timm's `VisionTransformer`: supported values}"""
_STRUCTURE = ("patch_size", "embed_dim", "depth", "num_heads")
"""Arguments that `model_args` must contain if the name of the architecture is unknown."""

# (pattern of an architecture, number of heads). The first match is used or, without one, `_NUM_HEADS_BY_SIZE`.
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
    """Checks that the architecture in a `config.json` is supported.

    Args:
        config: Contents of the file.

    Raises:
        ValueError: If the architecture or an argument is unsupported. The message contains the unsupported name.
    """
    architecture, arguments = config["architecture"], config.get("model_args", {})
    is_readable = any(re.fullmatch(pattern, architecture) for pattern in _READABLE)
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, architecture)), None)
    if not is_readable and kind:
        raise ValueError(f"timm's {architecture} has {kind}, which this package does not support.")
    if not is_readable and not all(name in arguments for name in _STRUCTURE):
        raise ValueError(
            f"{architecture!r} is not a known architecture of timm. If it is a VisionTransformer of timm, add its "
            f"arguments to model_args of config.json, at least {', '.join(_STRUCTURE)}."
        )
    for name, value in arguments.items():
        if name not in _ARGUMENTS:
            hint = did_you_mean(name, _ARGUMENTS)
            raise ValueError(f"model_args of config.json has the unknown argument {name}={value!r}.{hint}")
        accepted = _ARGUMENTS[name]
        if accepted is not ANY and value not in accepted:
            raise ValueError(
                f"model_args of config.json has {name}={value!r}. This package supports only {name}="
                f"{' or '.join(map(repr, accepted))}."
            )


def num_heads_of(architecture):
    """Number of attention heads of an architecture, derived from its name, or `None` if unknown."""
    heads = next((heads for pattern, heads in _NUM_HEADS if re.search(pattern, architecture)), None)
    size = re.match(r"[a-z0-9]+_([a-z0-9]+)", architecture)
    return heads or (size and _NUM_HEADS_BY_SIZE.get(size[1]))


def activation_of(architecture):
    """`ViTConfig.mlp` of an architecture, derived from its name."""
    return next(mlp for name, mlp in _ACTIVATIONS if re.search(name, architecture))
