"""Reads and writes KerasHub's ViT presets.

A preset is a folder with `config.json`, `model.weights.h5` and, for a head, `task.json` and `task.weights.h5`. In
these files, layers are named after their classes, in snake case, and the variables of a layer are numbered.
"""

import dataclasses
import math
import re
import typing

import keras
import numpy as np

from keras_vit.outputs import Output
from keras_vit.weights.catalogue.families import preprocessing_of
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats.describing import count_blocks, vit_config
from keras_vit.weights.formats.expressible import check_expressible
from keras_vit.weights.formats.format import OWN_FOLDER, CardFormat, Format
from keras_vit.weights.formats.names import Names, read_rules
from keras_vit.weights.formats.settings import (
    PREPARE_YOURSELF,
    check_settings,
    check_supported,
    output_of_problem,
    pair,
    read_toml,
)

_OUTPUTS = {"softmax": Output("classes"), "sigmoid": Output("labels")}
_EMBEDDING = "vi_t_patching_and_embedding"
_BLOCK = "vi_t_encoder/encoder_layers/vi_t_encoder_block_{i}/"
NAMES = Names(read_rules("keras_hub_names.txt"))
"""Rules for the names that `_renamed` returns. These names differ from KerasHub's: the first block has a number, like
all other blocks, and the head's layers have names that describe their purpose."""

_NUMBERED = re.compile(re.escape(_BLOCK).replace(r"\{i\}", r"(\d+)"))
_PREFIX = re.compile(r"^layers/(vi_t_backbone/layers/)?")


def _recognises(file):
    return any(f"{_EMBEDDING}/patch_embedding/vars/0" in name for name in file)


def _describe(file, hints):
    """The `Checkpoint` of a preset. `file` contains the arrays of its one or two weight files."""
    backbone = hints.settings["config.json"]
    if backbone.get("class_name") != "ViTBackbone":
        raise ValueError(
            f"A KerasHub preset needs its config.json beside the weights, with the class ViTBackbone. Received: class "
            f"{backbone.get('class_name')!r}"
        )
    settings, task = backbone["config"], hints.settings["task.json"].get("config", {})
    file = _renamed(file, settings, task)
    *patch, channels, hidden_dim = file.shapes[f"{_EMBEDDING}/patch_embedding/vars/0"]
    sizes = {
        "hidden_dim": hidden_dim,
        "num_layers": count_blocks(file.shapes, _NUMBERED),
        "mlp_dim": file.shapes[f"{_BLOCK.format(i=0)}mlp/dense_1/vars/0"][1],
    }
    check_settings(settings, patch_size=tuple(patch), **sizes)
    has_class_token, image_size = settings["use_class_token"], pair(settings["image_shape"][:2])
    num_rows = file.shapes[f"{_EMBEDDING}/position_embedding/vars/0"][0]
    _check_table(num_rows, settings, patch)
    classes, representation_dim = _head_sizes(file)
    check_settings(task, num_classes=classes, intermediate_dim=representation_dim)
    images = _read_converter(hints.settings["image_converter.json"])
    fields = {
        **sizes,
        "patch_size": patch,
        "num_heads": settings["num_heads"],
        "pooling": "token" if has_class_token else "avg",
        "class_token": has_class_token,
        "position_interpolation": "bilinear",
        "representation_dim": representation_dim,
        "mlp": "gelu_exact",
        "layer_norm_epsilon": settings["layer_norm_epsilon"],
    }
    own_grid = dataclasses.replace(hints, grid_size=None, family=None)  # `image_shape` is the only possible one.
    config, grid_size, image_size = vit_config(fields, own_grid, num_rows, [has_class_token], image_size)
    return Checkpoint(
        config=config,
        grid_size=grid_size,
        classes=classes,
        image_size=image_size,
        channels=channels,
        preprocessing=images["preprocessing"] or (hints.family and preprocessing_of(hints.family, image_size)),
        read=lambda: NAMES.decode(file, config.num_heads),
        skipped=file.left_out,
        output=_OUTPUTS.get(task.get("activation")) or output_of_problem({}, classes),
        ignored=check_supported("config.json", settings, _SUPPORTED["backbone"])
        | check_supported("task.json", task, _SUPPORTED["task"])
        | images["ignored"],
    )


def _check_table(num_rows, settings, patch):
    """Checks that the image size in the config fits the position table."""
    sides = zip(settings["image_shape"], patch, strict=False)
    if num_rows != math.prod(size // side for size, side in sides) + settings["use_class_token"]:
        raise ValueError(
            f"The configuration beside the weights belongs to another model: it contains image_shape="
            f"{settings['image_shape']}, but the arrays have {num_rows} position rows."
        )


def _head_sizes(file):
    """(number of classes, width of the head's hidden layer), each `None` if the file does not have that layer."""
    kernels = {name.split("/")[0]: shape for name, shape in file.shapes.items() if name.endswith("/vars/0")}
    widths = {layer.split("_of_")[0]: shape[-1] for layer, shape in kernels.items()}
    return widths.get("predictions"), widths.get("pre_logits")


def _renamed(file, settings, task):
    pooling = task.get("pooling", "token")
    fits = (pooling == "token") == settings["use_class_token"]
    classifier = "predictions" if fits else f"predictions_of_{pooling}"
    heads = dict(zip(("dense/", "dense_1/"), _heads(task.get("intermediate_dim"), classifier), strict=False))
    names = {}
    for old in file:
        if old.startswith("optimizer/"):
            continue
        new = _PREFIX.sub("", old)
        new = re.sub(r"vi_t_encoder_block/", "vi_t_encoder_block_0/", new)
        for layer, name in heads.items():
            if new.startswith(layer):
                new = f"{name}/{new.removeprefix(layer)}"
        names[new] = old
    return Renamed(file, names)


_SUPPORTED = read_toml("keras_hub.toml")


def _read_converter(converter):
    """`preprocessing` and `ignored` of a `Checkpoint`. `preprocessing` is `None` if the converter has no scale."""
    settings = converter.get("config", {})
    if settings.get("scale") is None:
        return {"preprocessing": None, "ignored": {}}
    ignored = check_supported("image_converter.json", settings, _SUPPORTED["image_converter"], PREPARE_YOURSELF)
    scale, offset = np.broadcast_arrays(settings["scale"], settings.get("offset") or 0.0)
    std = 1 / (255 * scale)
    mean = -offset * std
    if settings.get("image_size") is None:
        size: dict[str, typing.Any] = {"resize": None, "crop": None}
    else:
        height, width = pair(settings["image_size"])
        # KerasHub crops to the model's aspect ratio, then resizes. For squares, the opposite order gives the same
        # images.
        crops = settings.get("crop_to_aspect_ratio", True)
        size = {"resize": (height, width), "crop": None}
        if crops and height == width:
            size = {"resize": height, "crop": (height, width)}
        elif crops:
            ignored["crop_to_aspect_ratio"] = "images are resized to the size of the model without a crop"
        if not settings.get("antialias"):
            ignored["antialias"] = "False in image_converter.json has no effect: images are resized with antialiasing"
    preprocessing = {
        "mean": _one_or_all(mean),
        "std": _one_or_all(std),
        **size,
        "interpolation": settings.get("interpolation", "bilinear"),
    }
    return {"preprocessing": preprocessing, "ignored": ignored}


def _one_or_all(values):
    values = np.atleast_1d(values).tolist()
    return values[0] if len(set(values)) == 1 else tuple(values)


def _write(weights, description):
    """The files of a folder for KerasHub's `from_preset`."""
    _check_expressible(description)
    arrays = NAMES.encode(weights, description.config.num_heads)
    arrays = {name.replace("vi_t_encoder_block_0/", "vi_t_encoder_block/"): array for name, array in arrays.items()}
    heads = dict(zip(_heads(description.config.representation_dim), ("dense", "dense_1"), strict=False))
    backbone, preprocessor = _backbone(description), _preprocessor(description)
    is_head = {name: name.split("/")[0] in heads for name in arrays}
    files = {
        "config.json": backbone,
        "preprocessor.json": preprocessor,
        "image_converter.json": preprocessor["config"]["image_converter"],
        "metadata.json": {
            "keras_version": keras.__version__,
            "tasks": ["ImageClassifier"] if description.classes else [],
        },
        "model.weights.h5": {f"layers/{name}": array for name, array in arrays.items() if not is_head[name]},
    }
    if description.classes is None:
        return files
    task = {
        "backbone": backbone,
        "preprocessor": preprocessor,
        "num_classes": description.classes,
        "pooling": "token" if description.config.pooling == "token" else "gap",
        "intermediate_dim": description.config.representation_dim,
        **({"activation": "sigmoid"} if description.has_sigmoid else {}),
    }
    head = {}
    for name in filter(is_head.get, arrays):
        layer, rest = name.split("/", 1)
        head[f"layers/{heads[layer]}/{rest}"] = arrays[name]
    return files | {"task.json": _serialized("ViTImageClassifier", task), "task.weights.h5": head}


def _heads(representation_dim, classifier="predictions"):
    """This package's names of the head's dense layers, in the order in which KerasHub creates the layers."""
    return (classifier,) if representation_dim is None else ("pre_logits", classifier)


def _serialized(class_name, config):
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name).lower()  # The module of ViTBackbone is vit_backbone.
    return {
        "module": f"keras_hub.src.models.vit.{module}",
        "class_name": class_name,
        "config": config,
        "registered_name": f"keras_hub>{class_name}",
    }


def _backbone(description):
    config = description.config
    settings = {
        "image_shape": [*description.image_size, description.channels],
        "patch_size": list(config.patch_shape),
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "hidden_dim": config.hidden_dim,
        "mlp_dim": config.mlp_dim,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "use_class_token": config.has_class_token,
    }
    return _serialized("ViTBackbone", settings)


def _preprocessor(description):
    scale = [1 / (255 * std) for std in description.by_channel("std")]
    offset = [
        -mean / std for mean, std in zip(description.by_channel("mean"), description.by_channel("std"), strict=True)
    ]
    resize, _ = description.resize_and_crop
    keeps_ratio = isinstance(resize, int)
    converter = {
        "image_size": [resize, resize] if keeps_ratio else resize and list(resize),
        "scale": scale,
        "offset": offset,
        "interpolation": description.preprocessing["interpolation"],
        "antialias": True,
        "crop_to_aspect_ratio": keeps_ratio,
    }
    converter = _serialized("ViTImageConverter", converter)
    return _serialized("ViTImageClassifierPreprocessor", {"image_converter": converter})


def _check_expressible(description):
    config, (resize, crop) = description.config, description.resize_and_crop
    remainders = [size % side for size, side in zip(description.image_size, config.patch_shape, strict=True)]
    # KerasHub resizes to a height and a width, if at all. Before, it may crop to the aspect ratio of this size.
    accepted_crops = ((resize, resize),) if isinstance(resize, int) else (None, resize)
    conflicts = [
        ("average pooling beside a class token", config.pooling == "avg" and config.has_class_token),
        ("positions of the patches only", config.position_prefix_rows != config.num_class_tokens),
        ("images of a size that is not a multiple of the patch size", any(remainders)),
        (description.images, crop not in accepted_crops),
    ]
    check_expressible("KerasHub's ViT", config, ["keras_hub"], conflicts)


_CODE = """
import keras_hub

model = keras_hub.models.{keras_hub_class}.from_preset(".")
"""
FORMAT = Format(
    title="KerasHub's ViT",
    recognises=_recognises,
    describe=_describe,
    settings_files=("config.json", "task.json", "image_converter.json"),
    write=_write,
    card=lambda config: CardFormat("KerasHub", "keras-hub", _CODE, OWN_FOLDER),
)
