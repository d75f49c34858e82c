"""Reads timm's layout, `.safetensors`. The arrays of many `.pth` files have similar names (see `originals`).

Kernels of linear layers have the shape (out, in). Query, key and value share one kernel and one bias.
"""

import re

from keras_vit.architectures.stem import StemConfig
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.weights import originals
from keras_vit.weights.catalogue import FAMILIES, protocol
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.depth import count_blocks, stage_depths_of
from keras_vit.weights.hints import resolve_image_size, resolve_num_heads, resolve_positions
from keras_vit.weights.settings import check_settings, pair, patch_size_of
from keras_vit.weights.timm_architectures import (
    activation_of,
    arguments_of,
    check_architecture,
    has_classifier,
    has_final_norm,
    is_eva,
    num_heads_of,
    rotary_of,
)
from keras_vit.weights.timm_names import NAMES, decode
from keras_vit.weights.timm_pretrained_cfg import pretrained_cfg, read_config

_PATCH_KERNEL, _STEM_KERNEL = "patch_embed.proj.weight", "patch_embed.backbone.stem.conv.weight"
MLP_BY_ACTIVATION = {"gelu": "gelu_exact", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "silu": "swiglu"}


def recognises(file):
    """Whether a file has timm's names."""
    return any(name.endswith(("patch_embed.proj.weight", "embeds.proj.weight")) for name in file)  # `embeds`: NaFlex.


def describe(file, hints):
    """The `Checkpoint` of a file. Raises ValueError if a needed setting is in neither the file nor the hints."""
    is_described = "architecture" in hints.config
    if is_described:
        check_architecture(hints.config)
    else:
        originals.check_family(file, hints.family)
    everything, file = file, originals.renamed(file, hints.family)
    shapes = file.shapes
    family = hints.family
    hints = hints if is_described else originals.with_settings(hints, shapes)
    config = _config(shapes, hints)
    if family is not None:
        config = config.replace(position_interpolation=FAMILIES[family].position_interpolation)
    settings = pretrained_cfg(hints.config)
    size = hints.config.get("model_args", {}).get("img_size") or settings.get("input_size", ())[1:]
    size = pair(size or None)
    config, grid_size = _positions(shapes, config, hints, size)
    image_size = resolve_image_size(grid_size, config.total_stride, hints, size)
    classes = shapes["head.weight"][0] if "head.weight" in shapes else None
    is_classifier = has_classifier(hints.config, classes) and (is_described or family != "eva_clip")
    images = read_config(hints.config, classes, image_size)
    return Checkpoint(
        source=hints.source,
        format="timm",
        config=config,
        grid_size=grid_size,
        classes=classes,
        image_size=image_size,
        channels=shapes[_PATCH_KERNEL if config.stem is None else _STEM_KERNEL][1],
        pixels=images["pixels"] or (protocol(family, image_size) if family else None),
        label_space=images["label_space"],
        read=lambda: originals.without_masked_biases(decode(file, config), file),
        skipped=(*file.left_out(everything), *filter(NAMES.ignores, file)),
        activation=images["activation"] if is_classifier else None,
        ignored=images["ignored"],
    )


def _config(shapes, hints):
    model_args, arguments = hints.config.get("model_args", {}), arguments_of(hints.config)
    hidden_dim = shapes[_PATCH_KERNEL][0]
    num_layers = count_blocks(shapes, re.compile(r"blocks\.(\d+)\."))
    mlp_dim = shapes["blocks.0.mlp.fc2.weight"][1]
    config_num_heads = model_args.get("num_heads") or num_heads_of(hints.config.get("architecture", ""))
    num_heads = resolve_num_heads(config_num_heads, hidden_dim, num_layers, mlp_dim, hints)
    patch = shapes[_PATCH_KERNEL][2:]
    num_registers = shapes["reg_token"][1] if "reg_token" in shapes else 0
    check_settings(model_args, embed_dim=hidden_dim, depth=num_layers, patch_size=tuple(patch))
    check_settings(
        model_args, class_token="cls_token" in shapes, reg_tokens=num_registers, num_reg_tokens=num_registers
    )
    check_settings(hints.config, num_features=hidden_dim)
    config = ViTConfig(
        patch_size=patch_size_of(patch),
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        stem=_stem(shapes, hints.source),
        pooling=_pooling(shapes, hints.config),
        class_token="cls_token" in shapes,
        distillation_token="dist_token" in shapes,
        num_register_tokens=num_registers,
        block_norm="post" if arguments["use_post_norm"] else "pre",
        position_interpolation="bicubic_antialias",
        rotary=rotary_of(arguments),
        layer_scale=model_args.get("init_values") or 1e-5 if "blocks.0.ls1.gamma" in shapes else None,
        qk_norm="blocks.0.attn.q_norm.weight" in shapes,
        qkv_bias=_qkv_bias(shapes) if arguments["qkv_bias"] else "none",
        attention_inner_norm="blocks.0.attn.norm.weight" in shapes,
        mlp_inner_norm="blocks.0.mlp.norm.weight" in shapes,
        pre_norm="norm_pre.weight" in shapes,
        mlp=_mlp(shapes, hints.config, mlp_dim),
        layer_norm_epsilon=_epsilon(shapes, hints.config, arguments),
    )
    return _with_pooling(config, shapes, hints.config, arguments)


def _with_pooling(config, shapes, settings, arguments):
    """Returns the config, in which the fields that depend on `pooling` are set."""
    is_map = config.pooling == "map"
    includes_prefix = is_map if is_eva(settings.get("architecture", "")) else arguments["pool_include_prefix"]
    if is_map and config.mlp == "swiglu":
        raise ValueError("SwiGLU with attention pooling is not supported. In timm, the MLP of this pooling has SiLU.")
    sizes = {}
    if is_map:
        sizes["pooling_num_heads"] = arguments["attn_pool_num_heads"], config.num_heads
        sizes["pooling_mlp_dim"] = shapes["attn_pool.mlp.fc1.weight"][0], config.mlp_dim
    return config.replace(
        norm_placement="after_pooling" if "fc_norm.weight" in shapes else "before_pooling",
        final_norm=has_final_norm(arguments, config.pooling),
        pool_prefix_tokens=bool(includes_prefix and config.num_prefix_tokens and config.pooling in ("avg", "map")),
        **{field: size for field, (size, default) in sizes.items() if size != default},
    )


def _positions(shapes, config, hints, size):
    """(config in which the fields for positions are set, (rows, columns) of the position table or `None`)"""
    arguments = arguments_of(hints.config)
    is_expected = arguments["use_abs_pos_emb"] and arguments.get("pos_embed") not in ("none", "")
    if is_expected and "pos_embed" not in shapes:
        raise ValueError(
            "The file has no table of positions (pos_embed). This is accepted only if a config.json beside the file "
            "has pos_embed='none' in model_args. The model could have positions that are not stored in an array."
        )
    if not is_expected and "pos_embed" in shapes:
        raise ValueError(
            "The configuration beside the weights belongs to another model: it describes a model without a table of "
            "positions, but the file has one (pos_embed)."
        )
    if not is_expected:
        return config.replace(position_embedding="none"), None
    num_rows = shapes["pos_embed"][1]
    numbers = dict.fromkeys((config.num_prefix_tokens, *range(config.num_class_tokens, -1, -1)))
    choices = [number for number in numbers if number <= num_rows]
    prefix_rows, grid_size = resolve_positions(num_rows, choices, config.total_stride, hints, size)
    return config.replace(num_position_prefix_rows=prefix_rows), grid_size


def _stem(shapes, source):
    if _STEM_KERNEL not in shapes:
        if any(name.startswith("patch_embed.backbone.") for name in shapes):
            raise ValueError("The stem of the hybrid is not one of Google's. Other stems are not available.")
        return None
    pattern = re.compile(r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.conv1\.weight")
    units = [tuple(map(int, match.groups())) for name in shapes if (match := pattern.fullmatch(name))]
    return StemConfig(stage_depths_of(units, source, "hybrid") if units else (), shapes[_STEM_KERNEL][0], 1e-5, 1e-8)


def _pooling(shapes, config):
    if "attn_pool.latent" in shapes:
        return "map"
    pooling = {**config, **config.get("model_args", {})}.get("global_pool")
    if pooling == "":
        return None
    if pooling is not None:
        return pooling  # `ViTConfig` checks the value.
    return "avg" if "fc_norm.weight" in shapes or "cls_token" not in shapes else "token"


def _epsilon(shapes, config, arguments):
    by_shapes = 1e-5 if "norm_pre.weight" in shapes else 1e-6  # For files without a known architecture.
    return config.get("layer_norm_eps") or arguments["layer_norm_eps"] or by_shapes


def _qkv_bias(shapes):
    """`ViTConfig.qkv_bias` of a model whose queries and values have biases."""
    has_bias = {part: f"blocks.0.attn.{part}_proj.bias" in shapes for part in "qk"}
    is_without_key = has_bias["q"] and not has_bias["k"]
    marks = ("blocks.0.attn.q_bias", "blocks.0.attn.qkv.bias_mask")
    return "no_key" if is_without_key or any(mark in shapes for mark in marks) else "all"


def _mlp(shapes, config, mlp_dim):
    if "blocks.0.mlp.fc1_g.weight" in shapes or shapes["blocks.0.mlp.fc1.weight"][0] == 2 * mlp_dim:
        return "swiglu"
    activation = config.get("model_args", {}).get("act_layer")
    if activation is not None and activation not in MLP_BY_ACTIVATION:
        raise ValueError(f"The activation {activation!r} is not available. Accepted: {', '.join(MLP_BY_ACTIVATION)}")
    return MLP_BY_ACTIVATION.get(activation) or activation_of(config.get("architecture", ""))
