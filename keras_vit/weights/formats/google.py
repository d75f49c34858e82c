"""Reads and writes Google's `.npz` files of google-research/vision_transformer and google-research/big_vision.

Kernels have the same layouts as in this package, but names differ. The first generation of Flax numbered all modules of
a block together (`MultiHeadDotProductAttention_1`). Linen, its successor, numbers each kind of module separately. In
some files of big_vision, the arrays of all blocks are stacked.
"""

import logging
import math
import re

from keras_vit.architectures.stem import StemConfig
from keras_vit.outputs import Output
from keras_vit.weights.catalogue.families import FAMILIES, preprocessing_of
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.containers.files import Renamed, Reshaped
from keras_vit.weights.formats.describing import check_depth, count_blocks, stage_depths_of, vit_config
from keras_vit.weights.formats.expressible import check_expressible
from keras_vit.weights.formats.format import CardFormat, Format
from keras_vit.weights.formats.names import Names, read_rules
from keras_vit.weights.formats.settings import output_of_problem

logger = logging.getLogger(__name__)
_ATTENTION = "MultiHeadDotProductAttention_0"
NAMES = Names(read_rules("google_names.txt"))
"""Table for linen's names, in the form that `_renamed` returns. The stages and units of the stem are counted from 0."""

# Prefixes of the names of the model's arrays, in plain files, training states and image-text models.
_PREFIXES = ("", "opt/target/", "params/", "params/img/", "img/")
_TABLES = ("Transformer/posembed_input/pos_embedding", "pos_embedding")
"""Names of the position table in vision_transformer and in big_vision"""
_NUM_CHANNELS = 3
"""Channels of the images of NaFlex models, whose patches are vectors"""
# (name in Flax's first generation, name in linen)
_PRE_LINEN = (
    ("LayerNorm_2", "LayerNorm_1"),
    ("MultiHeadDotProductAttention_1", _ATTENTION),
    ("MlpBlock_3", "MlpBlock_0"),
)


def _describe(file, hints):
    prefix = _prefix(file)
    file = _renamed(file, prefix)
    left_out = file.left_out
    is_naflex = len(file.shapes["embedding/kernel"]) == 2 and len(set(file.shapes.get(_TABLES[1], ())[:2])) == 1
    if is_naflex:
        file = _with_images(file)
    shapes = file.shapes
    kernel = shapes["embedding/kernel"]
    if len(kernel) != 4:
        raise ValueError(
            f"embedding/kernel must be a patch projection (height, width, channels, D), but has the shape {kernel}."
        )
    has_class_token, table = "cls" in shapes, next((name for name in _TABLES if name in shapes), None)
    if "MAPHead_0/probe" in shapes and "head/kernel" not in shapes:
        family = "siglip"
    else:
        family = "google" if table == _TABLES[0] else "big_vision"
    family = hints.family or family
    stem = None
    if "conv_root/kernel" in shapes:
        depths = stage_depths_of(shapes, r"block(\d+)/unit(\d+)/", "hybrid", min_stages=0)
        stem = StemConfig(depths, width=shapes["conv_root/kernel"][-1])
    block = "Transformer/encoderblock_0/"
    hidden_dim, num_heads, _ = shapes[f"{block}{_ATTENTION}/query/kernel"]
    fields = {
        "patch_size": kernel[:2],
        "hidden_dim": hidden_dim,
        "num_layers": count_blocks(shapes, re.compile(r"Transformer/encoderblock_(\d+)/")),
        "num_heads": num_heads,
        "mlp_dim": shapes[f"{block}MlpBlock_0/Dense_0/kernel"][1],
        "stem": stem,
        "pooling": "map" if "MAPHead_0/probe" in shapes else "token" if has_class_token else "avg",
        "class_token": has_class_token,
        "position_embedding": "learned_1d" if table else "sincos_2d",
        "representation_dim": shapes["pre_logits/kernel"][1] if "pre_logits/kernel" in shapes else None,
        **FAMILIES[family].config_fields,
    }
    if is_naflex:
        fields["position_interpolation"] = "bilinear_antialias"
    # vision_transformer inserts the class token, then adds positions. big_vision adds positions before it inserts the
    # class token, except in the oldest files.
    choices = [has_class_token] if table == _TABLES[0] else range(has_class_token + 1)
    config, grid_size, image_size = vit_config(fields, hints, table and shapes[table][1], choices)
    classes = shapes["head/kernel"][1] if "head/kernel" in shapes else None
    return Checkpoint(
        config=config,
        grid_size=grid_size,
        classes=classes,
        image_size=image_size,
        channels=shapes["embedding/kernel" if stem is None else "conv_root/kernel"][2],
        preprocessing=preprocessing_of(family, image_size),
        read=lambda: NAMES.decode(file, num_heads),
        skipped=left_out,
        output=Output("embedding") if prefix.endswith("img/") else output_of_problem({}, classes),
    )


def _prefix(file):
    return next((prefix for prefix in _PREFIXES if f"{prefix}embedding/kernel" in file), None)


def _renamed(file, prefix):
    """The arrays of the model, with the names of linen."""
    names = {name.removeprefix(prefix): name for name in file if name.startswith(prefix)}
    names = {new: old for new, old in names.items() if 0 not in file.shapes[old]}  # Empty modules' arrays have size 0.
    if prefix == "":
        names = {new: old for new, old in names.items() if not new.startswith("opt/")}
    if "probe" in names:
        inlined = ("probe", "MultiHeadDotProductAttention_0/", "LayerNorm_0/", "MlpBlock_0/")
        names = {f"MAPHead_0/{new}" if new.startswith(inlined) else new: old for new, old in names.items()}
    names = {new.replace("Transformer/pos_embedding", "pos_embedding"): old for new, old in names.items()}
    names = {_renumbered(new, -1): old for new, old in names.items()}
    for new, old in list(names.items()):
        if new.startswith("Transformer/encoderblock/"):  # The arrays of all blocks are stacked.
            del names[new]
            for i in range(check_depth(file.shapes[old][0])):
                names[new.replace("encoderblock/", f"encoderblock_{i}/")] = old, i
    if any(name.endswith("/MultiHeadDotProductAttention_1/query/kernel") for name in names):
        for pre_linen, linen in _PRE_LINEN:
            names = {new.replace(f"/{pre_linen}/", f"/{linen}/"): old for new, old in names.items()}
    return Renamed(file, names)


def _with_images(file):
    """The arrays of a NaFlex model, whose inputs are patches, as those of a model of images."""
    (inputs, dim), (side, _, _) = (file.shapes[name] for name in ("embedding/kernel", _TABLES[1]))
    patch = math.isqrt(inputs // _NUM_CHANNELS)
    if patch**2 * _NUM_CHANNELS != inputs:
        raise ValueError(
            f"Patches must be square, with {_NUM_CHANNELS} channels. Received: {inputs} numbers of a patch"
        )
    new = {"embedding/kernel": (patch, patch, _NUM_CHANNELS, dim), _TABLES[1]: (1, side * side, dim)}
    return Reshaped(file, {name: (shape, lambda array, s=shape: array.reshape(s)) for name, shape in new.items()})


def _renumbered(name, offset):
    """Adds `offset` to the numbers of the stem's stage and unit in a name."""
    match = re.match(r"block(\d+)/unit(\d+)/", name)
    if match is None:
        return name
    return f"block{int(match[1]) + offset}/unit{int(match[2]) + offset}/{name[match.end() :]}"


def _write(weights, description):
    """Writes the layout of vision_transformer, or of big_vision if only big_vision can express the model."""
    config = description.config
    _check_expressible(description)
    _warn_of_images(description)
    arrays = NAMES.encode(weights, config.num_heads)
    if _fits_vision_transformer(config):
        arrays = {_pre_linen(name): array for name, array in arrays.items()}
    elif "Transformer/posembed_input/pos_embedding" in arrays:
        table = arrays.pop("Transformer/posembed_input/pos_embedding")
        arrays = {"pos_embedding": table, **arrays}
    return {"weights.npz": {_renumbered(name, 1): array for name, array in arrays.items()}}


def _pre_linen(name):
    if name.startswith("Transformer/encoderblock_"):
        for pre_linen, linen in _PRE_LINEN:
            name = name.replace(f"/{linen}/", f"/{pre_linen}/")
    return name


def _fits_vision_transformer(config):
    """Whether a model is written in the layout of vision_transformer, and not in the layout of big_vision."""
    return (
        config.position_embedding == "learned_1d"
        and config.pooling != "map"
        and config.position_prefix_rows == config.num_class_tokens
    )


def _check_expressible(description):
    config = description.config
    is_plain = _fits_vision_transformer(config)
    has_prefix_rows = config.position_embedding == "learned_1d" and config.position_prefix_rows > 0
    conflicts = [
        ("pixels that are not normalised to [-1, 1]", not description.is_normalized_to_one),
        ("a sigmoid of several classes", description.has_sigmoid and description.classes > 1),
        ("epsilons in the stem that differ from Google's and timm's", not description.has_known_stem),
        ("a class token that is not pooled", config.has_class_token != (config.pooling in ("token", None))),
        ("a hybrid with positions or pooling of big_vision", config.stem is not None and not is_plain),
        ("a position row of a class token that is not pooled", not is_plain and has_prefix_rows),
    ]
    check_expressible("Google's code", config, ["google"], conflicts)


def _warn_of_images(description):
    """Logs a warning if the file will be read with another resize, crop or interpolation than the model has."""
    resize, crop = description.resize_and_crop
    is_siglip = description.config.pooling == "map" and description.classes is None
    family = "siglip" if is_siglip else "google" if _fits_vision_transformer(description.config) else "big_vision"
    assumed = preprocessing_of(family, description.image_size)
    chosen = {"resize": resize, "crop": crop, "interpolation": description.preprocessing["interpolation"]}
    if (resize, crop) != (None, None) and any(value != assumed[name] for name, value in chosen.items()):
        settings = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
        logger.warning("Google's format does not contain how images are prepared. The model has %s.", settings)


_OWN_FILE = """
import keras_vit

model = keras_vit.from_pretrained({file}, num_heads={num_heads}{grid_size})
"""
_VISION_TRANSFORMER = """
from vit_jax import checkpoint

params = checkpoint.load({file})
"""
_BIG_VISION = """
from big_vision import utils

params = utils.load_checkpoint_np({file})
"""


def _card(config):
    project, code = "big_vision", _BIG_VISION
    if _fits_vision_transformer(config):
        project, code = "vision_transformer", _VISION_TRANSFORMER
    return CardFormat(project, project, code, _OWN_FILE)


FORMAT = Format(
    title="Google's Vision Transformers",
    recognises=lambda file: _prefix(file) is not None,
    describe=_describe,
    write=_write,
    card=_card,
    file_suffix=".npz",
)
