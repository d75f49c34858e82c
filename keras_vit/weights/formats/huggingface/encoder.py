"""Reads the encoders in transformers' layout: ViT, DeiT, DINOv2, DINOv3, I-JEPA, MAE, SigLIP and CLIP."""

import math
import re

from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.outputs import Output
from keras_vit.weights.catalogue.families import FAMILIES, preprocessing_of
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.containers.files import Renamed, Reshaped, as_patch_kernel
from keras_vit.weights.formats.describing import count_blocks, vit_config
from keras_vit.weights.formats.huggingface.config import (
    check_kind,
    read_class_names,
    read_processor,
    read_rotary_base,
)
from keras_vit.weights.formats.huggingface.names import KINDS, kind_of, without_prefix
from keras_vit.weights.formats.names import join_gates, with_head_bias
from keras_vit.weights.formats.settings import check_settings, output_of_problem, pair

_BLOCK = re.compile(r"(?:encoder\.)?layers?\.(\d+)\.")
_POSITIONS = ("embeddings.position_embeddings", "embeddings.position_embedding.weight")
_PATCHES = tuple(
    f"embeddings.{name}.weight" for name in ("patch_embeddings.projection", "patch_embedding", "patch_embeddings")
)
_MLP_OUTPUTS = ("output.dense", "mlp.fc2", "mlp.weights_out", "mlp.down_proj")
# Names of the projections to queries, keys and values.
_PROJECTIONS = (
    ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    *([f"{attention}.{part}_proj" for part in "qkv"] for attention in ("attention", "self_attn")),
)
_CLASSIFIERS = ("classifier.weight", "cls_classifier.weight", "visual_projection.weight")
# {field of `ViTConfig`: setting in config.json}
_SETTINGS = {"layer_scale": "layerscale_value", "layer_norm_epsilon": "layer_norm_eps"}
# {biases of (queries, keys, values): `ViTConfig.qkv_bias`}
_QKV_BIASES = {(True, True, True): "all", (True, False, True): "no_key", (False, False, False): "none"}


def describe(file, hints, json=None, prefix_choices=()):
    """The `Checkpoint` of an encoder and its classifier.

    Args:
        file: Mapping of arrays.
        hints: `Hints`.
        json: Contents of the config.json. `None`: those in `hints`.
        prefix_choices: Further possible numbers of rows for prefix tokens in the position table.
    """
    json = hints.settings["config.json"] if json is None else json
    settings = {**json, **json.get("vision_config", {})}
    ignored = check_kind(file, json, settings)
    file = Renamed(file, {without_prefix(name): name for name in file})
    has_flexible_grid = len(file.shapes.get(_PATCHES[1], ())) == 2  # SigLIP 2 NaFlex, whose inputs are patches.
    if has_flexible_grid:
        file = Reshaped(file, {_PATCHES[1]: as_patch_kernel(file.shapes[_PATCHES[1]])})
    kind = KINDS[kind_of(file)]
    shapes = {name: shape for name, shape in file.shapes.items() if not kind.names.ignores(name)}
    fields = _fields(kind, shapes, settings, hints)
    if has_flexible_grid:
        fields["position_interpolation"] = "bilinear_antialias"
    has_table = fields.get("position_embedding") != "none"
    num_rows = next(shapes[name][-2] for name in _POSITIONS if name in shapes) if has_table else None
    choices = [fields["class_token"] + fields.get("distillation_token", False), *prefix_choices]
    image_size = settings.get("image_size")
    if has_flexible_grid and num_rows is not None:  # The table of positions is square.
        image_size = math.isqrt(num_rows) * fields["patch_size"][0]
    config, grid_size, size = vit_config(fields, hints, num_rows, choices, pair(image_size))
    family = hints.family or kind.family
    classes = next((shapes[name][0] for name in _CLASSIFIERS if name in shapes), None)
    processor = (
        hints.settings["preprocessor_config.json"]
        or hints.settings["processor_config.json"].get("image_processor")
        or {}
    )
    images = read_processor(processor, size)
    is_classifier = not shapes.keys().isdisjoint(_CLASSIFIERS[:2])
    names, unusable = read_class_names(json, classes) if is_classifier else (None, {})
    return Checkpoint(
        config=config,
        grid_size=grid_size,
        classes=classes,
        image_size=size,
        channels=next(shapes[name][1] for name in _PATCHES if name in shapes),
        preprocessing=images["preprocessing"] or (preprocessing_of(family, size) if family else None),
        label_space=names,
        read=lambda: _read(file, kind, config),
        skipped=tuple(name for name in file if name not in shapes),
        output=Output("embedding") if "visual_projection.weight" in shapes else output_of_problem(json, classes),
        unsupported_head=kind.classifier if "classifier.weight" in shapes else None,
        ignored={**ignored, **images["ignored"], **unusable},
    )


def _fields(kind, shapes, settings, hints):
    """{field of `ViTConfig`: value}, except for the rows of the position table."""
    num_layers = count_blocks(shapes, _BLOCK)
    block = next(match[0] for name in shapes if (match := _BLOCK.match(name)))
    hidden_dim, _, *patch = next(shapes[name] for name in _PATCHES if name in shapes)
    mlp_dim = next(shapes[name][1] for part in _MLP_OUTPUTS if (name := f"{block}{part}.weight") in shapes)
    biases = _biases(shapes, block)
    num_heads = settings.get("num_attention_heads") or FAMILIES[kind.numerics].num_heads.get(hidden_dim)
    check_settings(settings, hidden_size=hidden_dim, num_hidden_layers=num_layers, patch_size=tuple(patch))
    check_settings(settings, qkv_bias=all(biases.values()), **biases)
    if "mlp_ratio" not in settings:
        check_settings(settings, intermediate_size=mlp_dim)
    return {
        "patch_size": patch,
        "hidden_dim": hidden_dim,
        "num_layers": num_layers,
        "num_heads": hints.num_heads or num_heads,
        "mlp_dim": mlp_dim,
        "num_register_tokens": shapes.get("embeddings.register_tokens", (1, 0))[1],
        "position_interpolation": "bicubic_antialias" if "embeddings.register_tokens" in shapes else "bicubic",
        "representation_dim": shapes.get("pooler.dense.bias", (None,))[0],
        "qkv_bias": _qkv_bias(biases),
        "pooling": "token",
        "class_token": True,
        **_fields_of_kind(kind, settings),
    }


def _biases(shapes, block):
    """Whether queries, keys and values have biases, under the names of DINOv3's settings."""
    names = next(names for names in _PROJECTIONS if f"{block}{names[0]}.weight" in shapes)
    parts = ("query", "key", "value")
    return {f"{part}_bias": f"{block}{name}.bias" in shapes for part, name in zip(parts, names, strict=True)}


def _qkv_bias(biases):
    qkv_bias = _QKV_BIASES.get(tuple(biases.values()))
    if qkv_bias is None:
        raise ValueError(
            f"The file has {', '.join(f'{name}={value}' for name, value in biases.items())}. Biases for all three, for "
            f"queries and values, or for none of the three are supported."
        )
    return qkv_bias


def _fields_of_kind(kind, settings):
    """Fields of `ViTConfig` that follow from the kind and its settings."""
    numerics = FAMILIES[kind.numerics]
    fields = {"mlp": numerics.gelu, "layer_norm_epsilon": numerics.layer_norm_epsilon, **kind.fields}
    fields |= {field: settings.get(name, fields[field]) for field, name in _SETTINGS.items() if field in fields}
    activation = settings.get("hidden_act")
    if kind.activations is not None and activation is not None:
        if activation not in kind.activations:
            accepted = ", ".join(kind.activations)
            raise ValueError(f"The activation {activation!r} is not available. Accepted: {accepted}")
        fields["mlp"] = kind.activations[activation]
    if kind.numerics == "dinov3":
        fields["rotary"] = RotaryConfig(base=read_rotary_base(settings))
    return fields


def _read(file, kind, config):
    weights = with_head_bias(join_gates(kind.names.decode(file, config.num_heads)))
    if not config.num_register_tokens:  # DINOv3 without registers has an empty array.
        weights.pop("register_tokens/tokens", None)
    return weights
