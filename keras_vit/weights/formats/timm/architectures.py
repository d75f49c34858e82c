"""What timm's config.json does not say: settings that follow from the name of an architecture.

timm's `config.json` contains the name of the architecture. Its `model_args` contain only the arguments that differ from
the defaults of the architecture. Many settings, such as the number of heads, the LayerNorm epsilon or rotary positions,
cannot be seen in the arrays either. An architecture is therefore read only if its name and arguments are in these
tables. `make support-matrix` compares the results with timm.
"""

import re
import typing

from keras_vit.architectures.base import ANY
from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.checks import did_you_mean

_DEFAULTS = {
    "layer_norm_eps": 1e-6,  # Timm's classes have the argument `norm_layer` instead.
    "qkv_bias": True,
    "use_post_norm": False,
    "final_norm": True,  # An argument of the class `VisionTransformer`.
    "use_post_transformer_norm": None,
    "use_fc_norm": None,
    "use_abs_pos_emb": True,
    "use_rot_pos_emb": False,
    "rope_type": "cat",
    "rope_temperature": 10000.0,
    "rope_rotate_half": False,
    "rope_grid_indexing": "ij",
    "rope_grid_offset": 0.0,
    "ref_feat_shape": None,
    "attn_pool_num_heads": None,
    "pool_include_prefix": False,
}
"""{argument: its default}. The names are those of the arguments of timm's class `Eva`."""

_DINOV3 = {
    "layer_norm_eps": 1e-5,
    "use_fc_norm": False,
    "use_abs_pos_emb": False,
    "use_rot_pos_emb": True,
    "rope_type": "dinov3",
    "rope_temperature": 100.0,
    "rope_rotate_half": True,
}
_EVA02 = {"use_rot_pos_emb": True, "ref_feat_shape": 16}
_PERCEPTION_ENCODER = {
    "layer_norm_eps": 1e-5,
    "use_rot_pos_emb": True,
    "rope_grid_indexing": "xy",
    "rope_grid_offset": 1.0,
    "ref_feat_shape": 32,
    "attn_pool_num_heads": 8,
}
_WITHOUT_NORM = {**_PERCEPTION_ENCODER, "use_post_transformer_norm": False, "use_fc_norm": False}
_AXIAL = {"use_rot_pos_emb": True, "rope_grid_indexing": "xy", "rope_temperature": 100.0}
_MIXED = {**_AXIAL, "rope_type": "mixed", "rope_temperature": 10.0}

# (pattern of architectures that can be read, their arguments that differ from `_DEFAULTS`). The first match is used.
_EVA: tuple[tuple[str, dict], ...] = (
    # DINOv3 (arXiv 2508.10104)
    (r"vit_[a-z0-9]+(_plus)?_patch16_dinov3|vit_giant_patch16_lingbot", {**_DINOV3, "qkv_bias": False}),
    (r"vit_[a-z0-9]+(_plus)?_patch16_(dinov3_qkvb|lingbot)", _DINOV3),
    (r"eva_giant_patch14(_clip)?_\d+", {}),  # EVA (arXiv 2211.07636)
    (r"eva02_enormous_patch14_clip_\d+", {"use_post_norm": True}),  # EVA-CLIP (arXiv 2303.15389)
    (r"eva02_(tiny|small|base|large)_patch\d+(_clip)?_\d+", _EVA02),  # EVA-02 (arXiv 2303.11331)
    (r"vit_mediumd_patch16_rope_reg1_gap_\d+", {**_EVA02, "use_abs_pos_emb": False, "qkv_bias": False}),
    (r"vit_(medium|betwixt|base)_patch16_rope_reg[14]_gap_\d+", {**_EVA02, "use_abs_pos_emb": False}),
    # Perception Encoder (arXiv 2504.13181)
    (r"vit_pe_core_gigantic_patch14_448", {**_PERCEPTION_ENCODER, "rope_grid_offset": 0.0}),
    (r"vit_pe_core_base_patch16_224", {**_PERCEPTION_ENCODER, "ref_feat_shape": 14}),
    (r"vit_pe_core_((tiny|small)_patch16_384|large_patch14_336)", {**_PERCEPTION_ENCODER, "ref_feat_shape": 24}),
    (r"vit_pe_(lang|spatial)_gigantic_patch14_448", {**_WITHOUT_NORM, "rope_grid_offset": 0.0}),
    (r"vit_pe_(spatial_(tiny|small|base)_patch16_512|(lang|spatial)_large_patch14_448)", _WITHOUT_NORM),
    # RoPE-ViT (arXiv 2403.13298)
    (r"vit_(small|base|large)_patch16_rope_\d+", {**_AXIAL, "use_abs_pos_emb": False}),
    (r"vit_(small|base|large)_patch16_rope_ape_\d+", _AXIAL),
    (r"vit_(small|base|large)_patch16_rope_mixed_\d+", {**_MIXED, "use_abs_pos_emb": False}),
    (r"vit_(small|base|large)_patch16_rope_mixed_ape_\d+", _MIXED),
)
_VISION_TRANSFORMER: tuple[tuple[str, dict], ...] = (
    (r"vit_(tiny|small|base|large|huge|giant|gigantic)_patch\d+_\d+", {}),  # ViT, AugReg (arXiv 2106.10270)
    (r"vit_small_patch16_36x1_\d+", {}),
    (r"vit_base_patch\d+_plus_\d+", {}),
    (r"vit_base_patch16_224_miil", {"qkv_bias": False}),
    (r"vit_base_patch16_rpn_\d+", {"use_post_norm": True, "qkv_bias": False}),
    (r"vit_[a-z0-9]+_patch\d+(_plus)?_clip(_quickgelu)?_\d+", {"layer_norm_eps": 1e-5}),  # CLIP (arXiv 2103.00020)
    (r"vit_[a-z0-9]+_patch\d+_siglip(_gap)?_\d+", {}),  # SigLIP (arXiv 2303.15343)
    (r"vit_[a-z0-9]+_patch14(_reg4)?_dinov2", {}),  # DINOv2 (arXiv 2304.07193)
    (r"vit_[a-z0-9]+_patch14_reg1_tipsv2", {}),
    (r"vit_(base|huge|giant)_patch\d+_gap_\d+", {}),  # I-JEPA (arXiv 2301.08243)
    (r"vit_(medium|betwixt)_patch16_gap_\d+", {"qkv_bias": False}),
    (r"vit_(wee|little|medium|mediumd|betwixt|base)_patch16_reg[14]_gap_\d+", {}),
    (r"vit_so150m_patch16_reg4_(gap|map)_\d+", {}),
    (r"vit_so150m2_patch16_reg1_gap_\d+", {"qkv_bias": False}),
    (r"vit_intern300m_patch14_448", {"final_norm": False}),
    (r"flexivit_(small|base|large)", {}),  # FlexiViT (arXiv 2212.08013)
    # DeiT (arXiv 2012.12877, 2204.07118)
    (r"deit3?_(tiny|small|medium|base|large|huge)(_distilled)?_patch\d+_\d+", {}),
    (r"eva_large_patch14_\d+", {}),  # EVA (arXiv 2211.07636). EVA-L is a plain ViT.
    (r"beit3_(base|large|giant)_patch\d+_\d+", {"layer_norm_eps": 1e-5}),  # BEiT-3 (arXiv 2208.10442)
    (r"vit_tiny_r_s16_p8_\d+|vit_(small|base)_r26_s32_\d+|vit_(base|large)_r50_s(16|32)_\d+", {}),
)
# (pattern of architectures that cannot be read, their unsupported feature). The first pattern that matches is used.
_KINDS = (
    (r"^naflexvit", "patches as inputs"),
    (r"_sapiens", "grouped-query attention"),
    (r"^eva|_dinov3|_rope|_pe_|_lingbot", "rotary positions of an unknown kind"),
    (r"^aimv2", "RMSNorm"),
    (r"^beit|_s?relpos", "relative positions"),
    (r"^samvit", "windowed attention"),
    (r"_18x2|_xp_|_pwee|_dpwee", "parallel blocks"),
    (r"_d(wee|little)", "differential attention"),
    (r"_radio", "patches of several resolutions"),
    (r"_resnet|_mci|^vitamin", "a stem that differs from those of Google's hybrids"),
)

# (pattern of an architecture, number of heads). The first match is used or, without one, `_NUM_HEADS_BY_SIZE`.
_NUM_HEADS = (
    (r"vit_base_patch16_gap_224", 16),
    (r"_giant_patch\d+_.*(dinov2|tipsv2|lingbot)", 24),
    (r"_huge_plus_", 20),
    (r"_patch\d+_plus_", 14),
)
_NUM_HEADS_BY_SIZE = {
    **{"tiny": 3, "xsmall": 4, "wee": 4, "little": 5, "small": 6, "medium": 8, "mediumd": 8, "betwixt": 10, "base": 12},
    **{"so150m": 14, "so150m2": 13, "7b": 32},
    **dict.fromkeys(("intern300m", "large", "so400m", "huge", "giant", "giantopt", "gigantic", "enormous"), 16),
}
_ACTIVATIONS = (
    (r"quickgelu", "quick_gelu"),
    (r"(base_patch32|so400m_patch16|giantopt_patch16)_siglip|large_patch16_siglip_(gap_)?512", "gelu_tanh"),
    (r"", "gelu_exact"),
)
MLP_BY_ACTIVATION = {"gelu": "gelu_exact", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "silu": "swiglu"}
"""{`act_layer` in `model_args`: `ViTConfig.mlp`}"""
# Models of these architectures end with a projection to the space of CLIP, unless they were fine-tuned.
_PROJECTED, _PROJECTION_WIDTHS = re.compile(r"_clip_|_pe_core_"), (512, 640, 768, 1024, 1280)

_FLAG = (False, True)
_SHARED_ARGUMENTS: dict[str, typing.Any] = {
    **dict.fromkeys(("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads"), ANY),
    **dict.fromkeys(("mlp_ratio", "init_values", "global_pool"), ANY),
    **dict.fromkeys(("class_token", "no_embed_class", "qkv_bias", "qk_norm", "dynamic_img_size"), _FLAG),
    "dynamic_img_pad": (False,),
    # These affect only training.
    **dict.fromkeys(("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"), ANY),
    "drop_path_rate": ANY,
}
_VISION_TRANSFORMER_ARGUMENTS = {
    **_SHARED_ARGUMENTS,
    **dict.fromkeys(("reg_tokens", "act_layer"), ANY),
    **dict.fromkeys(("pre_norm", "final_norm", "scale_attn_norm", "scale_mlp_norm", "pool_include_prefix"), _FLAG),
    "fc_norm": (None, *_FLAG),
    "pos_embed": ("learn", "none", ""),
    "proj_bias": (True,),
    "norm_layer": (None, "layernorm"),
    **dict.fromkeys(("weight_init", "fix_init"), ANY),
}
_EVA_ARGUMENTS = {
    **_SHARED_ARGUMENTS,
    **dict.fromkeys(("num_reg_tokens", "swiglu_align_to", "attn_pool_num_heads", "attn_pool_mlp_ratio"), ANY),
    **dict.fromkeys(("qkv_fused", "swiglu_mlp", "scale_mlp", "scale_attn_inner", "use_abs_pos_emb"), _FLAG),
    **dict.fromkeys(("use_rot_pos_emb", "rope_rotate_half", "use_post_norm", "use_pre_transformer_norm"), _FLAG),
    **dict.fromkeys(("use_post_transformer_norm", "use_fc_norm"), (None, *_FLAG)),
    "attn_type": ("eva", "rope"),
    "rope_type": ("cat", "dinov3", "mixed"),
    "rope_grid_indexing": ("ij", "xy"),
    **dict.fromkeys(("rope_temperature", "rope_grid_offset", "ref_feat_shape"), ANY),
    "attn_only_layer_scale": (False,),
    **dict.fromkeys(("num_kv_heads", "rope_mrope_section"), (None,)),
    # These affect only training.
    **dict.fromkeys(("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords", "head_init_scale"), ANY),
}
"""{argument of timm's class: supported values}"""
_STRUCTURE = ("patch_size", "embed_dim", "depth", "num_heads")
"""Arguments that `model_args` must contain if the name of the architecture is unknown."""


def check_architecture(config):
    """Checks that the architecture in a `config.json` is supported.

    Args:
        config: Contents of the file.

    Raises:
        ValueError: If the architecture or an argument is unsupported. The message contains the unsupported name.
    """
    architecture, arguments = config["architecture"], config.get("model_args", {})
    is_known = _of_name(_EVA + _VISION_TRANSFORMER, architecture) is not None
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, architecture)), None)
    if not is_known and kind:
        raise ValueError(f"timm's {architecture} has {kind}, which this package does not support.")
    if not is_known and not all(name in arguments for name in _STRUCTURE):
        raise ValueError(
            f"{architecture!r} is not a known architecture of timm. If it is a VisionTransformer of timm, add its "
            f"arguments to model_args of config.json, at least {', '.join(_STRUCTURE)}."
        )
    supported = _EVA_ARGUMENTS if is_eva(architecture) else _VISION_TRANSFORMER_ARGUMENTS
    for name, value in arguments.items():
        if name not in supported:
            hint = did_you_mean(name, supported)
            raise ValueError(f"model_args of config.json has the unknown argument {name}={value!r}.{hint}")
        accepted = supported[name]
        if accepted is not ANY and value not in accepted:
            raise ValueError(
                f"model_args of config.json has {name}={value!r}. This package supports only {name}="
                f"{' or '.join(map(repr, accepted))}."
            )


def is_eva(architecture):
    """Whether an architecture is one of timm's class `Eva`."""
    return _of_name(_EVA, architecture) is not None


def _of_name(table, architecture):
    """The arguments of an architecture in a table, or `None` if the table does not contain it."""
    return next((arguments for pattern, arguments in table if re.fullmatch(pattern, architecture)), None)


def arguments_of(config):
    """{argument: value} for all arguments in `_DEFAULTS` and in the `model_args` of a `config.json`.

    If the architecture is unknown, `layer_norm_eps` is `None`.

    Args:
        config: Contents of the `config.json`, or `{}` if there is none.
    """
    by_name = _of_name(_EVA + _VISION_TRANSFORMER, config.get("architecture", ""))
    if by_name is None:
        by_name = {"layer_norm_eps": None}
    return {**_DEFAULTS, **by_name, **config.get("model_args", {})}


def rotary_of(arguments):
    """`ViTConfig.rotary` for the result of `arguments_of`."""
    if not arguments["use_rot_pos_emb"]:
        return None
    kind, offset, grid = (arguments[name] for name in ("rope_type", "rope_grid_offset", "ref_feat_shape"))
    if (kind == "mixed" and arguments["rope_rotate_half"]) or (kind == "dinov3" and offset):
        raise ValueError(
            f"model_args of config.json has rope_type={kind!r}, rope_rotate_half={arguments['rope_rotate_half']} and "
            f"rope_grid_offset={offset!r}. This package does not support this kind of rotary positions."
        )
    if kind != "cat":  # timm does not use these arguments.
        offset, grid = 0.0, None
    return RotaryConfig(
        kind="mixed" if kind == "mixed" else "axial",
        base=arguments["rope_temperature"],
        layout="half" if arguments["rope_rotate_half"] else "interleaved",
        coordinates="normalized" if kind == "dinov3" else "grid",
        reference_grid=(grid, grid) if isinstance(grid, int) else grid,
        offset=offset,
        axis_order="xy" if arguments["rope_grid_indexing"] == "xy" else "yx",
    )


def has_final_norm(arguments, pooling):
    """`ViTConfig.final_norm` for the result of `arguments_of`."""
    with_fc_norm = pooling == "avg" if arguments["use_fc_norm"] is None else arguments["use_fc_norm"]
    return arguments["final_norm"] and (with_fc_norm or arguments["use_post_transformer_norm"] is not False)


def num_heads_of(architecture):
    """Number of attention heads of an architecture, derived from its name, or `None` if unknown."""
    heads = next((heads for pattern, heads in _NUM_HEADS if re.search(pattern, architecture)), None)
    size = re.match(r"[a-z0-9]+_(?:pe_[a-z]+_)?([a-z0-9]+)", architecture)
    return heads or (size and _NUM_HEADS_BY_SIZE.get(size[1]))


def activation_of(architecture):
    """`ViTConfig.mlp` of an architecture, derived from its name."""
    return next(mlp for name, mlp in _ACTIVATIONS if re.search(name, architecture))


def has_classifier(config, classes):
    """Whether the head of a model with a `config.json` computes logits of classes, not a projection like CLIP's.

    Args:
        config: Contents of the `config.json`. For published models, they include a tag, such as `"openai_ft_in1k"`.
        classes: Number of outputs of the head.
    """
    is_projected = _PROJECTED.search(config.get("architecture", "")) and classes in _PROJECTION_WIDTHS
    tag = config.get("pretrained_cfg", config).get("tag")
    return not (is_projected and tag and "_ft_" not in tag)
