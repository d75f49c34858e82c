"""Writes timm's layout: a folder for `timm.create_model("local-dir:<folder>", pretrained=True)`.

A model is written as timm's class `VisionTransformer` or, if this class cannot express it, as timm's class `Eva`.
"""

import re

from keras_vit.architectures.stem import StemConfig
from keras_vit.weights.formats.expressible import problems_of, refuse
from keras_vit.weights.formats.settings import write_problem
from keras_vit.weights.formats.timm.architectures import MLP_BY_ACTIVATION
from keras_vit.weights.formats.timm.names import encode
from keras_vit.weights.formats.timm.pretrained_cfg import write_pretrained_cfg

# Names of timm's architectures, for models that the arguments in `model_args` cannot describe completely.
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_PLAIN, _CLIP, _SWIGLU = "vit_base_patch16_224", "vit_base_patch16_clip_224", "vit_giant_patch14_dinov2"
_DISTILLED, _POST_NORM = "deit_base_distilled_patch16_224", "vit_base_patch16_rpn_224"
_EVA_BY_EPSILON = {1e-6: "eva_giant_patch14_224", 1e-5: "vit_base_patch16_dinov3"}


def write(weights, description):
    """`Format.write`: the files of a folder for `timm.create_model("local-dir:<folder>", pretrained=True)`."""
    config = description.config
    is_eva = _needs_eva(description)
    if _has_folded_position(config):
        weights, config = _with_folded_position(weights), config.replace(num_position_prefix_rows=0)
    arrays = encode(weights, config, separate_gates=is_eva and config.mlp == "swiglu" and config.mlp_inner_norm)
    if config.stem is not None and not config.stem.stage_depths:
        arrays = {name.replace("backbone.stem.", "backbone."): array for name, array in arrays.items()}
    if is_eva:
        arrays = {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name): array for name, array in arrays.items()}
    return {
        "model.safetensors": arrays,
        "config.json": {
            "architecture": _EVA_BY_EPSILON[config.layer_norm_epsilon] if is_eva else _architecture(config),
            "num_classes": description.classes or 0,
            "num_features": config.hidden_dim,
            "global_pool": config.pooling or "",
            "layer_norm_eps": config.layer_norm_epsilon,
            "model_args": (_eva_arguments if is_eva else _vision_transformer_arguments)(config, description),
            "pretrained_cfg": write_pretrained_cfg(description),
            **write_problem(description.output),  # timm does not use it.
        },
    }


def _needs_eva(description):
    """Whether a model must be written as timm's class `Eva`. Raises ValueError if timm cannot express the model."""
    config = description.config
    problems = problems_of(config, ["timm"], _vision_transformer_conflicts(description))
    if not problems:
        return False
    eva_problems = problems_of(config, ["eva", "timm"], _eva_conflicts(config))
    refuse("timm", problems if config.rotary is None and len(problems) <= len(eva_problems) else eva_problems)
    return True


def _has_folded_position(config):
    """Whether the position table has a row for the class token that timm's table for models with registers lacks."""
    has_table = config.position_embedding != "none"
    return has_table and 0 < config.position_prefix_rows == config.num_class_tokens < config.num_prefix_tokens


def _with_folded_position(weights):
    """Removes the class token's position from the table, and adds it to the class token itself."""
    path = "position_embedding/embedding"
    table = weights[path]
    return {**weights, "class_token/token": weights["class_token/token"] + table[0], path: table[1:]}


def _architecture(config):
    if config.stem is not None:
        return _HYBRIDS[config.stem.stage_depths]
    if config.distillation_token:
        return _DISTILLED
    if config.mlp == "swiglu":
        return _SWIGLU
    if config.block_norm == "post":
        return _POST_NORM
    return _CLIP if config.layer_norm_epsilon == 1e-5 else _PLAIN


def _shared_arguments(config, description):
    return {
        "img_size": list(description.image_size),
        "patch_size": config.patch_size,
        "embed_dim": config.hidden_dim,
        "depth": config.num_layers,
        "num_heads": config.num_heads,
        "qkv_bias": config.qkv_bias != "none",
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale,
    }


def _token_arguments(config):
    return {
        "global_pool": config.pooling or "",
        "class_token": config.has_class_token,
        "no_embed_class": config.num_prefix_tokens > 0 and config.position_prefix_rows == 0,
    }


def _vision_transformer_arguments(config, description):
    arguments = {
        **_shared_arguments(config, description),
        "mlp_ratio": _ratio(2 * config.mlp_dim if config.mlp == "swiglu" else config.mlp_dim, config),
        "scale_attn_norm": config.attention_inner_norm,
        "scale_mlp_norm": config.mlp_inner_norm,
        "final_norm": config.final_norm,
    }
    if config.mlp != "swiglu":
        activations = {mlp: activation for activation, mlp in MLP_BY_ACTIVATION.items()}
        arguments["act_layer"] = activations[config.mlp]
    if config.distillation_token:
        return arguments
    return {
        **arguments,
        **_token_arguments(config),
        "reg_tokens": config.num_register_tokens,
        "pos_embed": "none" if config.position_embedding == "none" else "learn",
        "pre_norm": config.pre_norm,
        "fc_norm": config.norm_placement == "after_pooling",
        "pool_include_prefix": config.pool_prefix_tokens,
    }


def _eva_arguments(config, description):
    is_after = config.norm_placement == "after_pooling"
    return {
        **_shared_arguments(config, description),
        **_token_arguments(config),
        **_rotary_arguments(config.rotary),
        "mlp_ratio": _ratio(config.mlp_dim, config),
        "swiglu_mlp": config.mlp == "swiglu",
        "swiglu_align_to": 0,
        "scale_mlp": config.mlp_inner_norm,
        "scale_attn_inner": config.attention_inner_norm,
        "attn_type": "rope" if config.qkv_bias == "all" else "eva",  # With "eva", keys have no bias.
        "qkv_fused": True,
        "num_reg_tokens": config.num_register_tokens,
        "use_abs_pos_emb": config.position_embedding != "none",
        "use_post_norm": config.block_norm == "post",
        "use_pre_transformer_norm": config.pre_norm,
        "use_post_transformer_norm": config.final_norm and not is_after,
        "use_fc_norm": config.final_norm and is_after,
        "attn_pool_num_heads": config.pooling_num_heads,
        "attn_pool_mlp_ratio": _ratio(config.pooling_mlp_dim or config.mlp_dim, config),
        "dynamic_img_size": config.position_embedding == "none" and not config.crop_to_patches,
    }


def _rotary_arguments(rotary):
    if rotary is None:
        return {"use_rot_pos_emb": False}
    axial = "dinov3" if rotary.coordinates == "normalized" else "cat"
    return {
        "use_rot_pos_emb": True,
        "rope_type": "mixed" if rotary.kind == "mixed" else axial,
        "rope_temperature": rotary.base,
        "rope_rotate_half": rotary.layout == "half",
        "rope_grid_indexing": "xy" if rotary.axis_order == "xy" else "ij",
        "rope_grid_offset": rotary.offset,
        "ref_feat_shape": rotary.reference_grid and list(rotary.reference_grid),
    }


def _ratio(width, config):
    return (width + 0.5) / config.hidden_dim  # timm truncates width = embed_dim * ratio to an integer.


def _vision_transformer_conflicts(description):
    config = description.config
    stem = config.stem if isinstance(config.stem, StemConfig) else None
    special = {
        "stem": stem is not None,
        "distillation token": config.distillation_token,
        "SwiGLU": config.mlp == "swiglu",
        "normalised outputs of blocks": config.block_norm == "post",
        "epsilon": config.layer_norm_epsilon == 1e-5,
    }
    combination = ", ".join(name for name, is_present in special.items() if is_present)
    return [
        *_shared_conflicts(config),
        ("registers beside a distillation token", config.distillation_token and config.num_register_tokens > 0),
        ("this stem", stem is not None and (stem.stage_depths not in _HYBRIDS or stem.width != 64)),
        ("epsilons in the stem that differ from Google's and timm's", not description.has_known_stem),
        (f"this combination of {combination}", sum(special.values()) > 1),
    ]


def _eva_conflicts(config):
    rotary, is_post = config.rotary, config.block_norm == "post"
    is_mixed = rotary is not None and rotary.kind == "mixed"
    plain = ("interleaved", "grid", None, 0)
    pools_prefix = config.pooling == "map" and config.num_prefix_tokens > 0
    return [
        *_shared_conflicts(config),
        (
            f"pool_prefix_tokens={config.pool_prefix_tokens} with pooling={config.pooling!r} in its class Eva",
            config.pool_prefix_tokens != pools_prefix,
        ),
        ("norms of queries and keys in blocks with normalised outputs", is_post and config.qk_norm),
        (
            "mixed rotary positions of this kind",
            is_mixed and (rotary.layout, rotary.coordinates, rotary.reference_grid, rotary.offset) != plain,
        ),
    ]


def _shared_conflicts(config):
    rows = {config.num_class_tokens, config.num_prefix_tokens}
    if not config.distillation_token:
        rows.add(0)
    is_other_row = config.position_embedding != "none" and config.position_prefix_rows not in rows
    is_post = config.block_norm == "post"
    return [
        ("position rows for only some of the prefix tokens", is_other_row),
        ("SwiGLU with attention pooling", config.mlp == "swiglu" and config.pooling == "map"),
        ("LayerScale in blocks with normalised outputs", is_post and config.layer_scale is not None),
    ]
