"""Reads the image towers of OpenCLIP and of Perception Encoder. The arrays in their files have nearly the same names.

Text towers are left out. OpenCLIP stores the settings in `open_clip_config.json`. In towers that are models of timm,
the arrays have timm's names.
"""

import dataclasses
import re

import numpy as np

from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.outputs import Output
from keras_vit.weights.catalogue.families import FAMILIES, preprocessing_of
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats import timm
from keras_vit.weights.formats.describing import count_blocks, vit_config
from keras_vit.weights.formats.format import Format
from keras_vit.weights.formats.names import Names, read_rules, with_head_bias
from keras_vit.weights.formats.settings import (
    PREPARE_YOURSELF,
    check_settings,
    check_supported,
    pair,
    read_toml,
)

NAMES = Names(read_rules("open_clip_names.txt"))
_NORM_AFTER_POOLING = {"encoder_norm/gamma": "pooled_norm/gamma", "encoder_norm/beta": "pooled_norm/beta"}

# The name of one array of each kind of tower, without the prefix of the tower.
_OWN, _TIMM = "transformer.resblocks.0.ln_1.weight", "trunk.patch_embed.proj.weight"
_PREFIX = re.compile(r"((state_dict|model|weights)/|(module|visual)\.)*")
_FAMILIES = ("clip", "open_clip", "pe")
_POOLINGS = {"tok": "token", "avg": "avg"}
_SUPPORTED = read_toml("open_clip.toml")
_FILE = "open_clip_config.json"


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
        preprocessing=_read_preprocessing(preprocessing, checkpoint.image_size) or checkpoint.preprocessing,
        output=Output("embedding"),
        ignored={
            **check_supported(f"model_cfg of {_FILE}", model_settings, _SUPPORTED["model_cfg"]),
            **check_supported(
                f"preprocess_cfg of {_FILE}", preprocessing, _SUPPORTED["preprocess_cfg"], PREPARE_YOURSELF
            ),
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
    config, grid_size, size = vit_config(fields, hints, num_rows, [fields["class_token"]], size)
    if family == "pe":
        config = config.replace(rotary=_perception_encoder_rotary(config, grid_size))
    return Checkpoint(
        config=config,
        grid_size=grid_size,
        classes=shapes["proj"][1] if "proj" in shapes else None,
        image_size=size,
        channels=shapes["conv1.weight"][1],
        preprocessing=preprocessing_of(family, size),
        read=lambda: _read(file, config),
        skipped=file.left_out,
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
    check_supported(f"vision_cfg of {_FILE}", vision, _SUPPORTED["vision_cfg"], strict=True)
    hidden_dim, _, *patch = shapes["conv1.weight"]
    num_layers = count_blocks(shapes, re.compile(r"transformer\.resblocks\.(\d+)\."))
    mlp_dim = shapes["transformer.resblocks.0.mlp.c_fc.weight"][0]
    check_settings(vision, width=hidden_dim, layers=num_layers, patch_size=tuple(patch))
    num_heads = hidden_dim // vision.get("head_width", 64) if vision else FAMILIES[family].num_heads.get(hidden_dim)
    activation, norm = (vision.get(name) or {} for name in ("act_kwargs", "norm_kwargs"))
    return {
        "patch_size": patch,
        "hidden_dim": hidden_dim,
        "num_layers": num_layers,
        "num_heads": hints.num_heads or num_heads or None,
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


def _perception_encoder_rotary(config, grid_size):
    """The rotary positions of Perception Encoder. A class token has position 0. The patches then begin at 1.

    In images of another size, positions are scaled to the grid of the file, as in timm. The authors' code does not
    scale them.
    """
    return RotaryConfig(
        base=10000.0,
        layout="interleaved",
        coordinates="grid",
        reference_grid=grid_size,
        offset=1.0 if config.has_class_token else 0.0,
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
        skipped=(*file.left_out, *checkpoint.skipped),
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
