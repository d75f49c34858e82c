"""Reads timm's layout, `.safetensors`. The arrays of many `.pth` files have similar names (see `originals`).

Kernels of linear layers have the shape (out, in). Query, key and value share one kernel and one bias.
"""

import math
import re

from keras_vit.architectures.stem import StemConfig
from keras_vit.outputs import Output
from keras_vit.weights.catalogue.families import FAMILIES
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.containers.files import Renamed, Reshaped, as_patch_kernel
from keras_vit.weights.formats import originals
from keras_vit.weights.formats.describing import count_blocks, stage_depths_of, vit_config
from keras_vit.weights.formats.format import OWN_FOLDER, CardFormat, Format
from keras_vit.weights.formats.settings import check_settings
from keras_vit.weights.formats.timm.architectures import (
    MLP_BY_ACTIVATION,
    activation_of,
    arguments_of,
    check_architecture,
    has_classifier,
    has_final_norm,
    is_eva,
    num_heads_of,
    rotary_of,
)
from keras_vit.weights.formats.timm.names import NAMES, decode
from keras_vit.weights.formats.timm.pretrained_cfg import read_config, read_image_size
from keras_vit.weights.formats.timm.writing import write

_PATCH_KERNEL, _STEM_KERNEL = "patch_embed.proj.weight", "patch_embed.backbone.stem.conv.weight"


def _recognises(file):
    return any(name.endswith(("patch_embed.proj.weight", "embeds.proj.weight")) for name in file)  # `embeds`: NaFlex.


def describe(file, hints, settings=None):
    """The `Checkpoint` of a file.

    Args:
        file: Mapping of arrays.
        hints: `Hints`.
        settings: Contents of a `config.json`. `None`: those in `hints`.
    """
    settings = hints.settings["config.json"] if settings is None else settings
    is_described = "architecture" in settings
    if is_described:
        check_architecture(settings)
    else:
        originals.check_family(file, hints.family)
    is_naflex = settings.get("architecture", "").startswith("naflexvit")
    if is_naflex:
        file, grid = _with_images(file)
    else:
        file = originals.renamed(file, hints.family)
    shapes = file.shapes
    if not is_described:
        settings = originals.with_settings(settings, hints.family, shapes)
    arguments = arguments_of(settings)
    fields = _fields(shapes, settings, arguments, hints)
    num_rows, choices = _position_rows(shapes, fields)
    image_size = read_image_size(settings)
    if is_naflex:
        image_size = tuple(count * step for count, step in zip(grid, fields["patch_size"], strict=True))
        method = f"{arguments['pos_embed_interp_mode']}_antialias"
        if arguments.get("pos_embed") == "factorized":
            method = "bilinear"
        fields["position_interpolation"] = method + "_square" * arguments.get("pos_embed_ar_preserving", False)
    config, grid_size, image_size = vit_config(fields, hints, num_rows, choices, image_size)
    classes = shapes["head.weight"][0] if "head.weight" in shapes else None
    is_classifier = has_classifier(settings, classes) and (is_described or hints.family != "eva_clip")
    facts = read_config(settings, classes, image_size, hints.family)
    return Checkpoint(
        config=config,
        grid_size=grid_size,
        classes=classes,
        image_size=image_size,
        channels=shapes[_PATCH_KERNEL if config.stem is None else _STEM_KERNEL][1],
        read=lambda: originals.without_masked_biases(decode(file, config), file),
        skipped=(*getattr(file, "left_out", ()), *filter(NAMES.ignores, file)),
        **facts if is_classifier else facts | {"output": Output("embedding")},
    )


def _with_images(file):
    """The arrays of a NaFlexViT, whose inputs are patches, as those of a model of images, and its grid of positions."""
    names = {name.replace("embeds.proj.", "patch_embed.proj.").removeprefix("embeds."): name for name in file}
    of_columns = names.pop("pos_embed_x", None)
    if of_columns is None:
        _, *grid, dim = file.shapes[names["pos_embed"]]
    else:  # Positions are sums of a row and a column.
        names["pos_embed"] = names.pop("pos_embed_y")
        (_, height, dim), (_, width, _) = file.shapes[names["pos_embed"]], file.shapes[of_columns]
        grid = [height, width]

    def positions(array):
        return (array if of_columns is None else array[:, :, None] + file[of_columns][:, None]).reshape(rows)

    rows = (1, math.prod(grid), dim)
    named = Renamed(file, names)
    changes = {_PATCH_KERNEL: as_patch_kernel(named.shapes[_PATCH_KERNEL]), "pos_embed": (rows, positions)}
    return Reshaped(named, changes), tuple(grid)


def _fields(shapes, settings, arguments, hints):
    """{field of `ViTConfig`: value}, except for the rows of the position table."""
    model_args = settings.get("model_args", {})
    hidden_dim = shapes[_PATCH_KERNEL][0]
    num_layers = count_blocks(shapes, re.compile(r"blocks\.(\d+)\."))
    mlp_dim = shapes["blocks.0.mlp.fc2.weight"][1]
    num_heads = hints.num_heads or model_args.get("num_heads") or num_heads_of(settings.get("architecture", ""))
    patch = shapes[_PATCH_KERNEL][2:]
    has_class_token = "cls_token" in shapes
    num_registers = shapes["reg_token"][1] if "reg_token" in shapes else 0
    check_settings(model_args, embed_dim=hidden_dim, depth=num_layers, patch_size=tuple(patch))
    check_settings(model_args, class_token=has_class_token, reg_tokens=num_registers, num_reg_tokens=num_registers)
    check_settings(settings, num_features=hidden_dim)
    has_table = arguments["use_abs_pos_emb"] and arguments.get("pos_embed") not in ("none", "")
    fields = {
        "patch_size": patch,
        "hidden_dim": hidden_dim,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
        "stem": _stem(shapes),
        "class_token": has_class_token,
        "distillation_token": "dist_token" in shapes,
        "num_register_tokens": num_registers,
        "block_norm": "post" if arguments["use_post_norm"] else "pre",
        "position_embedding": "learned_1d" if has_table else "none",
        "position_interpolation": FAMILIES[hints.family or "timm"].position_interpolation,
        "rotary": rotary_of(arguments),
        "layer_scale": model_args.get("init_values") or 1e-5 if "blocks.0.ls1.gamma" in shapes else None,
        "qk_norm": "blocks.0.attn.q_norm.weight" in shapes,
        "qkv_bias": _qkv_bias(shapes) if arguments["qkv_bias"] else "none",
        "attention_inner_norm": "blocks.0.attn.norm.weight" in shapes,
        "mlp_inner_norm": "blocks.0.mlp.norm.weight" in shapes,
        "pre_norm": "norm_pre.weight" in shapes,
        "mlp": _mlp(shapes, settings, mlp_dim),
        "layer_norm_epsilon": _epsilon(shapes, settings, arguments),
    }
    return fields | _pooling_fields(shapes, settings, arguments, fields)


def _pooling_fields(shapes, settings, arguments, fields):
    pooling = _pooling(shapes, settings)
    is_eva_class = is_eva(settings.get("architecture", ""))
    includes_prefix = pooling == "map" if is_eva_class else arguments["pool_include_prefix"]
    if pooling == "map" and fields["mlp"] == "swiglu":
        raise ValueError("SwiGLU with attention pooling is not supported. In timm, the MLP of this pooling has SiLU.")
    has_prefix = fields["class_token"] or fields["num_register_tokens"] > 0
    pooling_fields = {
        "pooling": pooling,
        "norm_placement": "after_pooling" if "fc_norm.weight" in shapes else "before_pooling",
        "final_norm": has_final_norm(arguments, pooling),
        "pool_prefix_tokens": bool(includes_prefix and has_prefix and pooling in ("avg", "map")),
    }
    if pooling == "map":
        num_heads, mlp_dim = arguments["attn_pool_num_heads"], shapes["attn_pool.mlp.fc1.weight"][0]
        pooling_fields["pooling_num_heads"] = None if num_heads == fields["num_heads"] else num_heads
        pooling_fields["pooling_mlp_dim"] = None if mlp_dim == fields["mlp_dim"] else mlp_dim
    return pooling_fields


def _position_rows(shapes, fields):
    """(rows of the position table or `None` without a table, possible numbers of rows for prefix tokens)"""
    has_table = fields["position_embedding"] != "none"
    if has_table and "pos_embed" not in shapes:
        raise ValueError(
            "The file has no table of positions (pos_embed). This is accepted only if a config.json beside the file "
            "has pos_embed='none' in model_args. The model could have positions that are not stored in an array."
        )
    if not has_table and "pos_embed" in shapes:
        raise ValueError(
            "The configuration beside the weights belongs to another model: it describes a model without a table of "
            "positions, but the file has one (pos_embed)."
        )
    if not has_table:
        return None, ()
    num_rows, num_class_tokens = shapes["pos_embed"][1], fields["class_token"] + fields["distillation_token"]
    choices = dict.fromkeys((num_class_tokens + fields["num_register_tokens"], *range(num_class_tokens, -1, -1)))
    return num_rows, [number for number in choices if number <= num_rows]


def _stem(shapes):
    if _STEM_KERNEL not in shapes:
        if any(name.startswith("patch_embed.backbone.") for name in shapes):
            raise ValueError("The stem of the hybrid is not one of Google's. Other stems are not available.")
        return None
    pattern = r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.conv1\.weight$"
    depths = stage_depths_of(shapes, pattern, "hybrid", min_stages=0)
    return StemConfig(depths, shapes[_STEM_KERNEL][0], 1e-5, 1e-8)


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


_CODE = """
import timm

model = timm.create_model("local-dir:.", pretrained=True).eval()
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
"""
FORMAT = Format(
    title="timm's VisionTransformer",
    recognises=_recognises,
    describe=describe,
    write=write,
    card=lambda config: CardFormat("timm", "timm", _CODE, OWN_FOLDER),
    outputs=("classes", "labels", "values"),
)
