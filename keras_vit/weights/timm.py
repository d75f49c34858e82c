"""Reads and writes timm's layout, `.safetensors`. The `.pth` files of DeiT, DINO, MAE and DINOv2 have it, too.

Kernels of linear layers have the shape (out, in). Query, key and value share one kernel and one bias.
"""

import re

from keras_vit.architectures.stem import StemConfig
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.weights.catalogue import FAMILIES, protocol
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.depth import count_blocks, stage_depths_of
from keras_vit.weights.expressible import ANY, check_expressible
from keras_vit.weights.hints import resolve_image_size, resolve_num_heads, resolve_positions
from keras_vit.weights.names import Names, Rule, block_rules, dense_rules, merged_rules, norm_rules
from keras_vit.weights.renamed import Renamed
from keras_vit.weights.settings import check_settings, pair, patch_size_of
from keras_vit.weights.timm_architectures import activation_of, check_architecture, num_heads_of
from keras_vit.weights.timm_pretrained_cfg import read_pretrained_cfg, write_pretrained_cfg


def _packed(names, path, layout, paths):
    yield Rule(f"{names}.weight", tuple(f"{path}/{part}/kernel" for part in paths), layout)
    yield Rule(f"{names}.bias", tuple(f"{path}/{part}/bias" for part in paths), layout)


def _convolution(name, path):
    return Rule(f"{name}.weight", f"{path}/kernel", "convolution")


def _units():
    unit, path = "patch_embed.backbone.stages.{s}.blocks.{u}.", "stem_stage_{s}_unit_{u}/"
    for number in (1, 2, 3):
        yield _convolution(f"{unit}conv{number}", f"{path}conv_{number}")
        yield from norm_rules(f"{unit}norm{number}", f"{path}norm_{number}")
    yield _convolution(f"{unit}downsample.conv", f"{path}projection_conv")
    yield from norm_rules(f"{unit}downsample.norm", f"{path}projection_norm")


_BLOCK = (
    *norm_rules("norm1", "attention_norm"),
    *_packed("attn.qkv", "attention", "query_key_value", ("query", "key", "value")),
    *norm_rules("attn.q_norm", "attention/query_norm"),
    *norm_rules("attn.k_norm", "attention/key_norm"),
    *merged_rules("attn.proj", "attention"),
    Rule("ls1.gamma", "attention_scale/gamma"),
    *norm_rules("norm2", "mlp_norm"),
    *dense_rules("mlp.fc1", "mlp/hidden"),
    *dense_rules("mlp.fc2", "mlp/output"),
    Rule("ls2.gamma", "mlp_scale/gamma"),
)
_POOLING = (
    Rule("latent", "probe"),
    Rule("q.weight", "attention/query/kernel", "heads"),
    Rule("q.bias", "attention/query/bias", "heads"),
    *_packed("kv", "attention", "key_value", ("key", "value")),
    *merged_rules("proj", "attention"),
    *norm_rules("norm", "norm"),
    *dense_rules("mlp.fc1", "mlp/hidden"),
    *dense_rules("mlp.fc2", "mlp/output"),
)

NAMES = Names(
    (
        Rule("cls_token", "class_token/token"),
        Rule("dist_token", "distillation_token/token"),
        Rule("reg_token", "register_tokens/tokens"),
        Rule("pos_embed", "position_embedding/embedding", "table"),
        _convolution("patch_embed.backbone.stem.conv", "stem_conv"),
        *norm_rules("patch_embed.backbone.stem.norm", "stem_norm"),
        *_units(),
        _convolution("patch_embed.proj", "patch_embedding"),
        Rule("patch_embed.proj.bias", "patch_embedding/bias"),
        *norm_rules("norm_pre", "pre_norm"),
        *block_rules("blocks.{i}.", _BLOCK),
        *norm_rules("norm", "encoder_norm"),
        *block_rules("attn_pool.", _POOLING, "pooling"),
        *norm_rules("fc_norm", "pooled_norm"),
        *dense_rules("head", "predictions"),
        *dense_rules("head_dist", "distillation_predictions"),
    ),
    # Only masked pre-training uses the decoder and the token that replaces masked patches.
    ignored=(r"mask_token", r"decoder_.*"),
)

# Prefixes of the names of the model's arrays in the original `.pth` files.
_PREFIX = re.compile(r"^(model/|state_dict/|teacher/|module\.|backbone\.)+")
# (pattern of a part of a name in older files, replacement)
_OLD_NAMES = (
    (r"^register_tokens$", "reg_token"),
    (r"^patch_embed\.backbone\.(conv|norm)\.", r"patch_embed.backbone.stem.\1."),
    (r"\.gamma_([12])$", r".ls\1.gamma"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
)
# (pattern of a name that occurs only in files of one family, family). The first pattern that matches is used.
_FAMILY_MARKS = (
    (r"(^|/)decoder_|fc_norm", "mae"),
    (r"^register_tokens$", "dinov2_registers"),
    (r"^mask_token$", "dinov2"),
    (r"^teacher/|backbone\.", "dino"),
    (r"\.gamma_1$", "deit3"),
    (r"dist_token", "deit"),
)
_PATCH_KERNEL, _STEM_KERNEL = "patch_embed.proj.weight", "patch_embed.backbone.stem.conv.weight"
_MLP_BY_ACTIVATION = {"gelu": "gelu_exact", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "silu": "swiglu"}


def recognises(file):
    """Whether a file has timm's names."""
    return any(name.endswith("patch_embed.proj.weight") for name in file)


def describe(file, hints):
    """The `Checkpoint` of a file. Raises ValueError if a needed setting is in neither the file nor the hints."""
    _check_known(file, hints)
    everything, file = file, _renamed(file)
    shapes = file.shapes
    family = hints.family
    config = _config(shapes, hints)
    if family is not None:
        config = config.replace(position_interpolation=FAMILIES[family].position_interpolation)
    settings = hints.config.get("pretrained_cfg", {})
    size = hints.config.get("model_args", {}).get("img_size") or settings.get("input_size", ())[1:]
    size = pair(size or None)
    config, grid_size = _positions(shapes, config, hints, size)
    image_size = resolve_image_size(grid_size, config.total_stride, hints, size)
    return Checkpoint(
        source=hints.source,
        format="timm",
        config=config,
        grid_size=grid_size,
        classes=shapes["head.weight"][0] if "head.weight" in shapes else None,
        image_size=image_size,
        channels=shapes[_PATCH_KERNEL if config.stem is None else _STEM_KERNEL][1],
        pixels=read_pretrained_cfg(settings, image_size) or (protocol(family, image_size) if family else None),
        read=lambda: NAMES.decode(file, config.num_heads),
        skipped=(*file.left_out(everything), *filter(NAMES.ignores, file)),
    )


def _renamed(file):
    names = {}
    for old in file:
        new = _PREFIX.sub("", old)
        if "/" in new or (new.startswith("head.") and new not in ("head.weight", "head.bias")):
            continue  # The array belongs to an optimizer's state or to DINO's projection head, for example.
        for pattern, replacement in _OLD_NAMES:
            new = re.sub(pattern, replacement, new)
        names[new] = old
    return Renamed(file, names)


def _check_known(file, hints):
    """Raises ValueError if neither a config.json nor a family provides the settings that the arrays do not show."""
    if "architecture" in hints.config:
        check_architecture(hints.config)
    elif hints.family is None:
        raise ValueError(
            f"The file has timm's layout, but no config.json beside it contains an architecture. The arrays do not "
            f"show the kind of positions, the activation, the LayerNorm epsilon and the pixel normalisation. Pass "
            f"family=... to keras_vit.from_pretrained or load_weights. The names in the file suggest "
            f"family={_likely_family(file)!r}. Accepted: {', '.join(FAMILIES)}."
        )


def _likely_family(file):
    return next((family for mark, family in _FAMILY_MARKS if any(re.search(mark, name) for name in file)), "timm")


def _config(shapes, hints):
    model_args = hints.config.get("model_args", {})
    hidden_dim = shapes[_PATCH_KERNEL][0]
    num_layers = count_blocks(shapes, re.compile(r"blocks\.(\d+)\."))
    mlp_dim = shapes["blocks.0.mlp.fc2.weight"][1]
    config_num_heads = model_args.get("num_heads") or num_heads_of(hints.config.get("architecture", ""))
    num_heads = resolve_num_heads(config_num_heads, hidden_dim, num_layers, mlp_dim, hints)
    patch = shapes[_PATCH_KERNEL][2:]
    check_settings(model_args, embed_dim=hidden_dim, depth=num_layers, patch_size=tuple(patch))
    check_settings(hints.config, num_features=hidden_dim)
    return ViTConfig(
        patch_size=patch_size_of(patch),
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        stem=_stem(shapes, hints.source),
        pooling=_pooling(shapes, hints.config),
        class_token="cls_token" in shapes,
        distillation_token="dist_token" in shapes,
        num_register_tokens=shapes["reg_token"][1] if "reg_token" in shapes else 0,
        norm_placement="after_pooling" if "fc_norm.weight" in shapes else "before_pooling",
        position_interpolation="bicubic_antialias",
        layer_scale=model_args.get("init_values") or 1e-5 if "blocks.0.ls1.gamma" in shapes else None,
        qk_norm="blocks.0.attn.q_norm.weight" in shapes,
        pre_norm="norm_pre.weight" in shapes,
        mlp=_mlp(shapes, hints.config, mlp_dim),
        layer_norm_epsilon=hints.config.get("layer_norm_eps") or (1e-5 if "norm_pre.weight" in shapes else 1e-6),
    )


def _positions(shapes, config, hints, size):
    """(config in which the fields for positions are set, (rows, columns) of the position table or `None`)"""
    if "pos_embed" not in shapes:
        if hints.config.get("model_args", {}).get("pos_embed") not in ("none", ""):
            raise ValueError(
                "The file has no table of positions (pos_embed), and no config.json beside it has pos_embed='none' in "
                "model_args. The model could have positions that are not stored in an array."
            )
        return config.replace(position_embedding="none"), None
    choices = range(config.num_class_tokens, -1, -1)
    prefix_rows, grid_size = resolve_positions(shapes["pos_embed"][1], choices, config.total_stride, hints, size)
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
        if "cls_token" in shapes or "reg_token" in shapes:
            raise ValueError("timm's attention pooling omits class tokens and registers, which this package cannot do.")
        return "map"
    pooling = {**config, **config.get("model_args", {})}.get("global_pool")
    if pooling == "":
        return None
    if pooling is not None:
        return pooling  # `ViTConfig` checks the value.
    return "avg" if "fc_norm.weight" in shapes or "cls_token" not in shapes else "token"


def _mlp(shapes, config, mlp_dim):
    if shapes["blocks.0.mlp.fc1.weight"][0] == 2 * mlp_dim:
        return "swiglu"
    activation = config.get("model_args", {}).get("act_layer")
    if activation is not None and activation not in _MLP_BY_ACTIVATION:
        raise ValueError(f"The activation {activation!r} is not available. Accepted: {', '.join(_MLP_BY_ACTIVATION)}")
    return _MLP_BY_ACTIVATION.get(activation) or activation_of(config.get("architecture", ""))


# Names of timm's architectures, for models that the arguments in `model_args` cannot describe completely.
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_PLAIN, _CLIP, _SWIGLU = "vit_base_patch16_224", "vit_base_patch16_clip_224", "vit_giant_patch14_dinov2"
_DISTILLED = "deit_base_distilled_patch16_224"


def write(weights, facts):
    """Converts weights to the files of a folder for `timm.create_model("local-dir:<folder>", pretrained=True)`.

    `weights` is {canonical path: array}, and `facts` is the model's `Facts`. Returns {file name: contents}. The
    contents are {name: array} for the weights, and a dictionary for the JSON file. Raises ValueError if timm cannot
    express the model. The message lists the reasons.
    """
    config = facts.config
    _check_expressible(facts)
    if config.num_register_tokens and config.position_prefix_rows:
        weights, config = _with_folded_position(weights), config.replace(num_position_prefix_rows=0)
    arrays = NAMES.encode(weights, config.num_heads)
    if config.stem is not None and not config.stem.stage_depths:
        arrays = {name.replace("backbone.stem.", "backbone."): array for name, array in arrays.items()}
    return {
        "model.safetensors": arrays,
        "config.json": {
            "architecture": _architecture(config),
            "num_classes": facts.classes or 0,
            "num_features": config.hidden_dim,
            "global_pool": config.pooling or "",
            "layer_norm_eps": config.layer_norm_epsilon,
            "model_args": _model_args(config, facts),
            "pretrained_cfg": write_pretrained_cfg(facts),
        },
    }


def _with_folded_position(weights):
    """Adds the class token's position to the token. In timm's models with registers, the token has no position row."""
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
    return _CLIP if config.layer_norm_epsilon == 1e-5 else _PLAIN


def _model_args(config, facts):
    width = 2 * config.mlp_dim if config.mlp == "swiglu" else config.mlp_dim
    arguments = {
        "img_size": list(facts.image_size),
        "patch_size": config.patch_size,
        "embed_dim": config.hidden_dim,
        "depth": config.num_layers,
        "num_heads": config.num_heads,
        "mlp_ratio": (width + 0.5) / config.hidden_dim,  # timm truncates width = embed_dim * mlp_ratio to an integer.
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale,
    }
    if config.mlp != "swiglu":
        activations = {mlp: activation for activation, mlp in _MLP_BY_ACTIVATION.items()}
        arguments["act_layer"] = activations[config.mlp]
    if config.distillation_token:
        return arguments
    return {
        **arguments,
        "global_pool": config.pooling or "",
        "class_token": config.has_class_token,
        "no_embed_class": config.has_class_token and config.position_prefix_rows == 0,
        "reg_tokens": config.num_register_tokens,
        "pos_embed": "none" if config.position_embedding == "none" else "learn",
        "pre_norm": config.pre_norm,
        "fc_norm": config.norm_placement == "after_pooling",
    }


_EXPRESSIBLE = {
    "stem": ANY,
    "pooling": ("token", "avg", "map", None),
    "class_token": (None, False, True),
    "norm_placement": ("before_pooling", "after_pooling"),
    "position_embedding": ("learned_1d", "none"),
    "mlp": ("gelu_tanh", "gelu_exact", "quick_gelu", "swiglu"),
    "layer_norm_epsilon": (1e-6, 1e-5),
    **dict.fromkeys(("distillation_token", "qk_norm", "pre_norm", "crop_to_patches"), (False, True)),
    **dict.fromkeys(("num_register_tokens", "num_position_prefix_rows", "layer_scale"), ANY),
}


def _check_expressible(facts):
    config = facts.config
    stem = config.stem
    special = (stem is not None, config.distillation_token, config.mlp == "swiglu", config.layer_norm_epsilon == 1e-5)
    prefix_rows = (config.num_class_tokens,) if config.distillation_token else (0, config.num_class_tokens)
    conflicts = [
        ("prefix tokens with attention pooling", config.pooling == "map" and config.num_prefix_tokens > 0),
        ("this stem", stem is not None and (stem.stage_depths not in _HYBRIDS or stem.width != 64)),
        ("epsilons in the stem that differ from Google's and timm's", not facts.has_known_stem),
        ("position rows for only some of the prefix tokens", config.position_prefix_rows not in prefix_rows),
        ("this combination of stem, distillation token, SwiGLU and epsilon", sum(special) > 1),
    ]
    check_expressible("timm", config, _EXPRESSIBLE, conflicts)
