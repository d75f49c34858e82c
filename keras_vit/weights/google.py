"""Reads and writes Google's `.npz` files of google-research/vision_transformer and google-research/big_vision.

Kernels have the same layouts as in this package, but names differ. The first generation of Flax numbered all modules of
a block together (`MultiHeadDotProductAttention_1`). Linen, its successor, numbers each kind of module separately. In
some files of big_vision, the arrays of all blocks are stacked.
"""

import logging
import re

from keras_vit.architectures.stem import StemConfig
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.weights.catalogue import protocol
from keras_vit.weights.checkpoint import Checkpoint, numerics
from keras_vit.weights.depth import check_depth, count_blocks, stage_depths_of
from keras_vit.weights.expressible import ANY, check_expressible
from keras_vit.weights.hints import resolve_image_size, resolve_positions
from keras_vit.weights.names import Names, Rule, block_rules
from keras_vit.weights.renamed import Renamed
from keras_vit.weights.settings import activation_of_problem, patch_size_of

logger = logging.getLogger(__name__)
_BLOCK = "Transformer/encoderblock_{i}/"
_ATTENTION = "MultiHeadDotProductAttention_0"


def _norm(name, path, layout="same"):
    return Rule(f"{name}/scale", f"{path}/gamma", layout), Rule(f"{name}/bias", f"{path}/beta", layout)


def _dense(name, path):
    return Rule(f"{name}/kernel", f"{path}/kernel"), Rule(f"{name}/bias", f"{path}/bias")


def _attention(path):
    for name, part in (("query", "query"), ("key", "key"), ("value", "value"), ("out", "output")):
        yield from _dense(f"{_ATTENTION}/{name}", f"{path}/{part}")


def _mlp(path):
    return *_dense("MlpBlock_0/Dense_0", f"{path}/hidden"), *_dense("MlpBlock_0/Dense_1", f"{path}/output")


def _unit():
    unit, path = "block{s}/unit{u}/", "stem_stage_{s}_unit_{u}/"
    for number in (1, 2, 3):
        yield Rule(f"{unit}conv{number}/kernel", f"{path}conv_{number}/kernel")
        yield from _norm(f"{unit}gn{number}", f"{path}norm_{number}", "channels")
    yield Rule(f"{unit}conv_proj/kernel", f"{path}projection_conv/kernel")
    yield from _norm(f"{unit}gn_proj", f"{path}projection_norm", "channels")


NAMES = Names(
    (
        Rule("conv_root/kernel", "stem_conv/kernel"),
        *_norm("gn_root", "stem_norm", "channels"),
        *_unit(),
        *_dense("embedding", "patch_embedding"),
        Rule("cls", "class_token/token"),
        Rule("Transformer/posembed_input/pos_embedding", "position_embedding/embedding", "table"),
        Rule("pos_embedding", "position_embedding/embedding", "table"),
        *block_rules(_BLOCK, _norm("LayerNorm_0", "attention_norm")),
        *block_rules(_BLOCK, _attention("attention")),
        *block_rules(_BLOCK, _norm("LayerNorm_1", "mlp_norm")),
        *block_rules(_BLOCK, _mlp("mlp")),
        *_norm("Transformer/encoder_norm", "encoder_norm"),
        Rule("MAPHead_0/probe", "pooling/probe"),
        *block_rules("MAPHead_0/", _attention("attention"), "pooling"),
        *block_rules("MAPHead_0/", _norm("LayerNorm_0", "norm"), "pooling"),
        *block_rules("MAPHead_0/", _mlp("mlp"), "pooling"),
        *_dense("pre_logits", "pre_logits"),
        *_dense("head", "predictions"),
    ),
)
"""Table for linen's names, in the form that `_renamed` returns. The stages and units of the stem are counted from 0."""

# Prefixes of the names of the model's arrays, in plain files, training states and image-text models.
_PREFIXES = ("", "opt/target/", "params/", "params/img/", "img/")
# (name in Flax's first generation, name in linen)
_PRE_LINEN = (
    ("LayerNorm_2", "LayerNorm_1"),
    ("MultiHeadDotProductAttention_1", _ATTENTION),
    ("MlpBlock_3", "MlpBlock_0"),
)


def recognises(file):
    """Whether a file has Google's names."""
    return _prefix(file) is not None


def describe(file, hints):
    """The `Checkpoint` of a file. Raises ValueError if a needed setting is in neither the file nor the hints."""
    prefix = _prefix(file)
    everything, file = file, _renamed(file, prefix)
    shapes = file.shapes
    family = hints.family or _family(shapes)
    stem = _stem(shapes, hints.source)
    block = "Transformer/encoderblock_0/"
    hidden_dim, num_heads, _ = shapes[f"{block}{_ATTENTION}/query/kernel"]
    config = ViTConfig(
        patch_size=_patch_size(shapes),
        hidden_dim=hidden_dim,
        num_layers=count_blocks(shapes, re.compile(r"Transformer/encoderblock_(\d+)/")),
        num_heads=num_heads,
        mlp_dim=shapes[f"{block}MlpBlock_0/Dense_0/kernel"][1],
        stem=stem,
        pooling="map" if "MAPHead_0/probe" in shapes else "token" if "cls" in shapes else "avg",
        class_token="cls" in shapes,
        representation_dim=shapes["pre_logits/kernel"][1] if "pre_logits/kernel" in shapes else None,
        **numerics(family),
    )
    config, grid_size = _positions(shapes, config, hints)
    image_size = resolve_image_size(grid_size, config.total_stride, hints)
    classes = shapes["head/kernel"][1] if "head/kernel" in shapes else None
    return Checkpoint(
        source=hints.source,
        format="google",
        config=config,
        grid_size=grid_size,
        classes=classes,
        image_size=image_size,
        channels=shapes["embedding/kernel" if stem is None else "conv_root/kernel"][2],
        pixels=protocol(family, image_size),
        read=lambda: NAMES.decode(file, num_heads),
        skipped=file.left_out(everything),
        activation=None if prefix.endswith("img/") else activation_of_problem({}, classes),
    )


def _prefix(file):
    return next((prefix for prefix in _PREFIXES if f"{prefix}embedding/kernel" in file), None)


def _renamed(file, prefix):
    names = {name.removeprefix(prefix): name for name in file if name.startswith(prefix)}
    names = {new: old for new, old in names.items() if 0 not in file.shapes[old]}  # Empty modules' arrays have size 0.
    if prefix == "":
        names = {new: old for new, old in names.items() if not new.startswith("opt/")}
    if "probe" in names:
        inlined = ("probe", "MultiHeadDotProductAttention_0/", "LayerNorm_0/", "MlpBlock_0/")
        names = {f"MAPHead_0/{new}" if new.startswith(inlined) else new: old for new, old in names.items()}
    names = {new.replace("Transformer/pos_embedding", "pos_embedding"): old for new, old in names.items()}
    names = {_renumbered(new, -1): old for new, old in names.items()}
    return Renamed(file, _with_linen_names(_unstacked(names, file)))


def _renumbered(name, offset):
    """Adds `offset` to the numbers of the stem's stage and unit in a name."""
    match = re.match(r"block(\d+)/unit(\d+)/", name)
    if match is None:
        return name
    return f"block{int(match[1]) + offset}/unit{int(match[2]) + offset}/{name[match.end() :]}"


def _unstacked(names, file):
    """Replaces the name of each stacked array (`Transformer/encoderblock/…`) by one name for each block."""
    split_names = {}
    for new, old in names.items():
        if new.startswith("Transformer/encoderblock/"):
            for i in range(check_depth(file.shapes[old][0])):
                split_names[new.replace("encoderblock/", f"encoderblock_{i}/")] = old, i
        else:
            split_names[new] = old
    return split_names


def _with_linen_names(names):
    if not any(name.endswith("/MultiHeadDotProductAttention_1/query/kernel") for name in names):
        return names
    for pre_linen, linen in _PRE_LINEN:
        names = {new.replace(f"/{pre_linen}/", f"/{linen}/"): old for new, old in names.items()}
    return names


def _family(shapes):
    if "MAPHead_0/probe" in shapes and "head/kernel" not in shapes:
        return "siglip"
    return "google" if "Transformer/posembed_input/pos_embedding" in shapes else "big_vision"


def _patch_size(shapes):
    kernel = shapes["embedding/kernel"]
    if len(kernel) != 4:
        raise ValueError(
            f"embedding/kernel must be a patch projection (height, width, channels, D), but has the shape {kernel}. "
            f"NaFlex models, whose inputs are patches instead of images, are not supported."
        )
    return patch_size_of(kernel[:2])


def _stem(shapes, source):
    if "conv_root/kernel" not in shapes:
        return None
    matches = (re.match(r"block(\d+)/unit(\d+)/", name) for name in shapes)
    units = [tuple(map(int, match.groups())) for match in matches if match]
    return StemConfig(stage_depths_of(units, source, "hybrid") if units else (), width=shapes["conv_root/kernel"][-1])


def _positions(shapes, config, hints):
    """(config in which the fields for positions are set, (rows, columns) of the position table or `None`)"""
    in_encoder = "Transformer/posembed_input/pos_embedding"
    name = next((name for name in (in_encoder, "pos_embedding") if name in shapes), None)
    if name is None:
        return config.replace(position_embedding="sincos_2d"), None
    # vision_transformer inserts the class token, then adds positions. big_vision adds positions before it inserts the
    # class token, except in the oldest files.
    choices = [config.num_class_tokens] if name == in_encoder else range(config.num_class_tokens + 1)
    prefix_rows, grid_size = resolve_positions(shapes[name][1], choices, config.total_stride, hints)
    if prefix_rows != config.num_class_tokens:
        config = config.replace(num_position_prefix_rows=prefix_rows)
    return config, grid_size


def write(weights, facts):
    """Converts {canonical path: array} to the {name: array} of a file for Google's code.

    The layout is that of vision_transformer, or of big_vision if only big_vision can express the model. Raises
    ValueError if neither can express it. The message lists the reasons.
    """
    config = facts.config
    _check_expressible(facts)
    _warn_of_images(facts)
    arrays = NAMES.encode(weights, config.num_heads)
    if fits_vision_transformer(config):
        arrays = {_pre_linen(name): array for name, array in arrays.items()}
    elif "Transformer/posembed_input/pos_embedding" in arrays:
        table = arrays.pop("Transformer/posembed_input/pos_embedding")
        arrays = {"pos_embedding": table, **arrays}
    return {_renumbered(name, 1): array for name, array in arrays.items()}


def _pre_linen(name):
    if name.startswith("Transformer/encoderblock_"):
        for pre_linen, linen in _PRE_LINEN:
            name = name.replace(f"/{linen}/", f"/{pre_linen}/")
    return name


def fits_vision_transformer(config):
    """Whether a model is written in the layout of vision_transformer, and not in the layout of big_vision."""
    return (
        config.position_embedding == "learned_1d"
        and config.pooling != "map"
        and config.position_prefix_rows == config.num_class_tokens
    )


_EXPRESSIBLE = {
    "stem": (None, StemConfig),
    "pooling": ("token", "avg", "map", None),
    "class_token": (None, False, True),
    "position_embedding": ("learned_1d", "sincos_2d"),
    "num_position_prefix_rows": ANY,
    "representation_dim": ANY,
    "crop_to_patches": (False, True),  # The file does not contain the image size.
    "mlp": ("gelu_tanh",),
}


def _check_expressible(facts):
    config = facts.config
    is_plain = fits_vision_transformer(config)
    has_prefix_rows = config.position_embedding == "learned_1d" and config.position_prefix_rows > 0
    conflicts = [
        ("pixels that are not normalised to [-1, 1]", not facts.is_normalized_to_one),
        ("a sigmoid of several classes", facts.has_sigmoid and facts.classes > 1),
        ("epsilons in the stem that differ from Google's and timm's", not facts.has_known_stem),
        ("a class token that is not pooled", config.has_class_token != (config.pooling in ("token", None))),
        ("a hybrid with positions or pooling of big_vision", config.stem is not None and not is_plain),
        ("a position row of a class token that is not pooled", not is_plain and has_prefix_rows),
    ]
    check_expressible("Google's code", config, _EXPRESSIBLE, conflicts)


def _warn_of_images(facts):
    """Logs a warning if the file will be read with another resize, crop or interpolation than the model has."""
    resize, crop = facts.resize_and_crop
    is_siglip = facts.config.pooling == "map" and facts.classes is None
    family = "siglip" if is_siglip else "google" if fits_vision_transformer(facts.config) else "big_vision"
    assumed = protocol(family, facts.image_size)
    chosen = {"resize": resize, "crop": crop, "interpolation": facts.pixels["interpolation"]}
    if (resize, crop) != (None, None) and any(value != assumed[name] for name, value in chosen.items()):
        settings = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
        logger.warning("Google's format does not contain how images are prepared. The model has %s.", settings)
