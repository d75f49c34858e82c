"""Reads the image towers of OpenCLIP and of Perception Encoder. The arrays in their files have nearly the same names.

Text towers are left out. OpenCLIP stores the settings in `open_clip_config.json`. In towers that are models of timm,
the arrays have timm's names.
"""

import dataclasses
import re
import typing

import numpy as np

from keras_vit.architectures.base import ANY
from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.checks import did_you_mean
from keras_vit.weights.catalogue.families import FAMILIES, preprocessing_of
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats import timm
from keras_vit.weights.formats.describing import count_blocks, resolve_num_heads, resolve_positions, vit_config
from keras_vit.weights.formats.format import Format
from keras_vit.weights.formats.names import (
    Names,
    Rule,
    block_rules,
    dense_rules,
    merged_rules,
    norm_rules,
    with_head_bias,
)
from keras_vit.weights.formats.settings import PREPARE_YOURSELF, check_settings, check_supported, pair, patch_size_of


def _attention(names):
    for array, part in (("in_proj_weight", "kernel"), ("in_proj_bias", "bias")):
        paths = tuple(f"attention/{name}/{part}" for name in ("query", "key", "value"))
        yield Rule(f"{names}.{array}", paths, "query_key_value")
    yield from merged_rules(f"{names}.out_proj", "attention")


_MLP = (*dense_rules("mlp.c_fc", "mlp/hidden"), *dense_rules("mlp.c_proj", "mlp/output"))
_BLOCK = (
    *norm_rules("ln_1", "attention_norm"),
    *_attention("attn"),
    Rule("ls_1.gamma", "attention_scale/gamma"),
    *norm_rules("ln_2", "mlp_norm"),
    *_MLP,
    Rule("ls_2.gamma", "mlp_scale/gamma"),
)
_POOLING = (Rule("probe", "probe"), *_attention("attn"), *norm_rules("layernorm", "norm"), *_MLP)  # Perception Encoder
NAMES = Names(
    (
        Rule("conv1.weight", "patch_embedding/kernel", "convolution"),
        Rule("class_embedding", "class_token/token", "token"),
        Rule("positional_embedding", "position_embedding/embedding"),
        *norm_rules("ln_pre", "pre_norm"),
        *block_rules("transformer.resblocks.{i}.", _BLOCK),
        *norm_rules("ln_post", "encoder_norm"),
        *block_rules("attn_pool.", _POOLING, "pooling"),
        # Not transposed, because the authors' code multiplies by it from the right.
        Rule("proj", "predictions/kernel"),
    )
)
_NORM_AFTER_POOLING = {"encoder_norm/gamma": "pooled_norm/gamma", "encoder_norm/beta": "pooled_norm/beta"}

# The name of one array of each kind of tower, without the prefix of the tower.
_OWN, _TIMM = "transformer.resblocks.0.ln_1.weight", "trunk.patch_embed.proj.weight"
_PREFIX = re.compile(r"((state_dict|model|weights)/|(module|visual)\.)*")
_FAMILIES = ("clip", "open_clip", "pe")
_POOLINGS = {"tok": "token", "avg": "avg"}
_NO = (False, None)
_SETTINGS: dict[str, typing.Any] = {
    **dict.fromkeys(("layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size", "ls_init_value"), ANY),
    **dict.fromkeys(("no_ln_pre", "pos_embed_type", "final_ln_after_pool", "norm_kwargs", "output_tokens"), ANY),
    "pool_type": tuple(_POOLINGS),
    "act_kwargs": (None, {}, {"approximate": "tanh"}, {"approximate": "none"}),
    **dict.fromkeys(("attentional_pool", "qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner"), _NO),
    **dict.fromkeys(("scale_attn", "scale_fc", "timm_model_name"), _NO),
    # These affect only other kinds of towers, or only training.
    **dict.fromkeys(("patch_dropout", "attn_pooler_queries", "attn_pooler_heads", "block_type"), ANY),
    **dict.fromkeys(("timm_model_pretrained", "timm_pool", "timm_proj", "timm_proj_bias"), ANY),
    **dict.fromkeys(("timm_drop", "timm_drop_path"), ANY),
}
"""{setting in `vision_cfg`: supported values}"""
_FILE = "open_clip_config.json"
_MODEL: dict[str, typing.Any] = {
    **dict.fromkeys(("vision_cfg", "quick_gelu", "embed_dim", "model_cfg", "preprocess_cfg"), ANY),
    # These affect only the text tower, the loss or the precision.
    **dict.fromkeys(("text_cfg", "custom_text", "multimodal_cfg", "init_logit_scale", "init_logit_bias"), ANY),
    **dict.fromkeys(("nonscalar_logit_scale", "cast_dtype", "output_dict", "tokenizer_cfg"), ANY),
}
"""{setting in `model_cfg`: supported values}"""
_PREPROCESSING: dict[str, typing.Any] = {
    **dict.fromkeys(("mean", "std"), ANY),
    "mode": ("RGB",),
    # OpenCLIP draws the interpolation in training only. With "random", it evaluates with "bicubic".
    "interpolation": ("bilinear", "bicubic", "random"),
    "resize_mode": ("shortest", "squash"),
    # The size is that of the model, and images are not padded with the colour.
    **dict.fromkeys(("size", "fill_color"), ANY),
}
"""{setting in `preprocess_cfg`: supported values}"""


def _recognises(file):
    return _prefix_of(file, _OWN) is not None or _prefix_of(file, _TIMM) is not None


def _prefix_of(file, first):
    """Prefix of a tower's names. `None`: the file has no tower of this kind. A text tower has no `conv1.weight`."""
    other = "conv1.weight" if first == _OWN else first
    prefixes = [name.removesuffix(first) for name in file if name.endswith(first)]
    return next((prefix for prefix in prefixes if _PREFIX.fullmatch(prefix) and f"{prefix}{other}" in file), None)


def _describe(file, hints):
    settings = hints.settings[_FILE]
    model_settings = settings.get("model_cfg", settings)
    vision = model_settings.get("vision_cfg", {})
    if _prefix_of(file, _TIMM) is not None:
        checkpoint = _timm_tower(file, vision, hints)
    else:
        checkpoint = _own_tower(file, vision, model_settings.get("quick_gelu", False), hints)
    preprocessing = settings.get("preprocess_cfg", {})
    return dataclasses.replace(
        checkpoint,
        format="open_clip",
        preprocessing=_read_preprocessing(preprocessing, checkpoint.image_size) or checkpoint.preprocessing,
        activation=None,
        ignored={
            **check_supported(f"model_cfg of {_FILE}", model_settings, _MODEL),
            **check_supported(f"preprocess_cfg of {_FILE}", preprocessing, _PREPROCESSING, PREPARE_YOURSELF),
        },
    )


def _own_tower(everything, vision, quick_gelu, hints):
    prefix = _prefix_of(everything, _OWN)
    file = Renamed(everything, {name.removeprefix(prefix): name for name in everything if name.startswith(prefix)})
    shapes = file.shapes
    family = _family(shapes, vision, hints)
    fields = _fields(shapes, vision, family, hints)
    if quick_gelu or (family == "clip" and not vision):
        fields["mlp"] = "quick_gelu"
    num_rows, size = shapes["positional_embedding"][0], pair(vision.get("image_size"))
    if family == "pe":
        fields["rotary"] = _perception_encoder_rotary(fields, num_rows, hints, size)
    config, grid_size, size = vit_config(fields, hints, num_rows, [fields["class_token"]], size)
    return Checkpoint(
        source=hints.source,
        format="open_clip",
        config=config,
        grid_size=grid_size,
        classes=shapes["proj"][1] if "proj" in shapes else None,
        image_size=size,
        channels=shapes["conv1.weight"][1],
        preprocessing=preprocessing_of(family, size),
        read=lambda: _read(file, config),
        skipped=file.left_out(everything),
    )


def _family(shapes, vision, hints):
    """Key of `FAMILIES`. Perception Encoder has a probe, or no norm after its blocks."""
    is_perception_encoder = "attn_pool.probe" in shapes or "ln_post.weight" not in shapes
    family = hints.family or ("pe" if is_perception_encoder else "open_clip" if vision else None)
    if family is None:
        raise ValueError(
            "The file has the layout of OpenCLIP, but there is no open_clip_config.json beside it. The arrays do not "
            "show the activation and the pixel normalisation. Pass family='clip' for the weights of OpenAI, or "
            "family='open_clip' for those of OpenCLIP."
        )
    if family not in _FAMILIES or (family == "pe") != is_perception_encoder:
        accepted = "'pe'" if is_perception_encoder else "'clip' or 'open_clip'"
        raise ValueError(f"The names in the file are those of family={accepted}. Received: family={family!r}")
    return family


def _fields(shapes, vision, family, hints):
    """{field of `ViTConfig`: value}, except for the rows of the position table."""
    _check_supported(vision)
    hidden_dim, _, *patch = shapes["conv1.weight"]
    num_layers = count_blocks(shapes, re.compile(r"transformer\.resblocks\.(\d+)\."))
    mlp_dim = shapes["transformer.resblocks.0.mlp.c_fc.weight"][0]
    check_settings(vision, width=hidden_dim, layers=num_layers, patch_size=tuple(patch))
    num_heads = hidden_dim // vision.get("head_width", 64) if vision else FAMILIES[family].num_heads.get(hidden_dim)
    activation, norm = (vision.get(name) or {} for name in ("act_kwargs", "norm_kwargs"))
    return {
        "patch_size": patch_size_of(patch),
        "hidden_dim": hidden_dim,
        "num_layers": num_layers,
        "num_heads": resolve_num_heads(num_heads, hidden_dim, num_layers, mlp_dim, hints),
        "mlp_dim": mlp_dim,
        "class_token": "class_embedding" in shapes,
        "pre_norm": "ln_pre.weight" in shapes,
        "final_norm": "ln_post.weight" in shapes,
        "norm_placement": "after_pooling" if vision.get("final_ln_after_pool") else "before_pooling",
        "position_interpolation": FAMILIES[family].position_interpolation,
        "layer_scale": vision.get("ls_init_value") or 0.1 if "transformer.resblocks.0.ls_1.gamma" in shapes else None,
        "mlp": "gelu_tanh" if activation.get("approximate") == "tanh" else "gelu_exact",
        "layer_norm_epsilon": norm.get("eps", 1e-5),
        **_pooling(shapes, vision, mlp_dim),
    }


def _check_supported(vision):
    for name, value in vision.items():
        accepted = _SETTINGS.get(name, ())
        if accepted is not ANY and value not in accepted:
            hint = "" if name in _SETTINGS else did_you_mean(name, _SETTINGS)
            raise ValueError(f"vision_cfg of open_clip_config.json has {name}={value!r}, which is not supported.{hint}")


def _pooling(shapes, vision, mlp_dim):
    """The fields of `ViTConfig` for the pooling."""
    if "attn_pool.probe" in shapes:
        pooling_mlp_dim = shapes["attn_pool.mlp.c_fc.weight"][0]
        return {
            "pooling": "map",
            "pooling_num_heads": 8,
            "pooling_mlp_dim": None if pooling_mlp_dim == mlp_dim else pooling_mlp_dim,
            "pool_prefix_tokens": "class_embedding" in shapes,
        }
    return {"pooling": _POOLINGS[vision.get("pool_type", "tok")] if "ln_post.weight" in shapes else None}


def _perception_encoder_rotary(fields, num_rows, hints, image_size):
    """The rotary positions of Perception Encoder. A class token has position 0. The patches then begin at 1.

    In images of another size, positions are scaled to the grid of the file, as in timm. The authors' code does not
    scale them.
    """
    stride = pair(fields["patch_size"])
    _, grid_size = resolve_positions(num_rows, [fields["class_token"]], stride, hints, image_size)
    return RotaryConfig(
        base=10000.0,
        layout="interleaved",
        coordinates="grid",
        reference_grid=grid_size,
        offset=1.0 if fields["class_token"] else 0.0,
        axis_order="xy",
    )


def _read(file, config):
    weights = NAMES.decode(file, config.num_heads, config.pooling_num_heads)
    if config.norm_placement == "after_pooling":
        weights = {_NORM_AFTER_POOLING.get(path, path): array for path, array in weights.items()}
    if not config.pre_norm:  # A ViT of this package without this norm has a bias in its patch embedding.
        weights["patch_embedding/bias"] = np.zeros(config.hidden_dim, "float32")
    return with_head_bias(weights)


def _timm_tower(everything, vision, hints):
    if "timm_model_name" not in vision:
        raise ValueError(
            "The image tower is a model of timm. Put the open_clip_config.json, which contains its name, into the "
            "folder of the file."
        )
    prefix = _prefix_of(everything, _TIMM)
    trunk, projection, mlp = (f"{prefix}{part}." for part in ("trunk", "head.proj", "head.mlp"))
    names = {name.removeprefix(trunk): name for name in everything if name.startswith(trunk)}
    names |= {name.replace(projection, "head."): name for name in everything if name.startswith(projection)}
    file = Renamed(everything, names)
    config = {"architecture": vision["timm_model_name"]}
    if pooling := vision.get("timm_pool", "avg"):
        config["global_pool"] = pooling
    if "image_size" in vision:
        config["model_args"] = {"img_size": vision["image_size"]}
    checkpoint = timm.describe(file, hints, config)
    mlp_shape = everything.shapes.get(f"{mlp}fc2.weight")
    return dataclasses.replace(
        checkpoint,
        classes=mlp_shape[0] if mlp_shape else checkpoint.classes,
        preprocessing=checkpoint.preprocessing or preprocessing_of("open_clip", checkpoint.image_size),
        read=lambda: with_head_bias(checkpoint.read()),
        skipped=(*file.left_out(everything), *checkpoint.skipped),
        unsupported_head="the output of an MLP" if mlp_shape else None,
    )


def _read_preprocessing(settings, image_size):
    """Arguments of `Preprocessing` from `preprocess_cfg`, or `None` if it has no mean."""
    if settings.get("mean") is None or settings.get("std") is None:
        return None
    is_square = len(set(image_size)) == 1
    crops = settings.get("resize_mode") != "squash"
    return {
        "mean": tuple(settings["mean"]),
        "std": tuple(settings["std"]),
        "resize": image_size[0] if crops and is_square else image_size,
        "crop": image_size if crops else None,
        "interpolation": "bilinear" if settings.get("interpolation") == "bilinear" else "bicubic",
    }


FORMAT = Format(
    title="OpenCLIP's image towers", recognises=_recognises, describe=_describe, settings_files=(_FILE, "config.json")
)
