"""Reads published weights of BiT-ResNets (arXiv 1912.11370) in the layouts of big_transfer, big_vision and timm."""

import re

from keras_vit.architectures import BiTResNetConfig
from keras_vit.weights.catalogue.families import preprocessing_of
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats.describing import stage_depths_of
from keras_vit.weights.formats.format import Format
from keras_vit.weights.formats.names import Names, Rule
from keras_vit.weights.formats.settings import pair
from keras_vit.weights.formats.timm.pretrained_cfg import pretrained_cfg, read_config

_UNIT = "stage_{s}_unit_{u}"


def _norm(names, path):
    scale, bias = names
    return Rule(scale, f"{path}/gamma", "channels"), Rule(bias, f"{path}/beta", "channels")


def _big_transfer():
    yield Rule("resnet/root_block/standardized_conv2d/kernel", "stem_conv/kernel")
    for number, letter in enumerate("abc", 1):
        prefix = f"resnet/block{{s}}/unit{{u}}/{letter}"
        yield Rule(f"{prefix}/standardized_conv2d/kernel", f"{_UNIT}/conv_{number}/kernel")
        yield from _norm((f"{prefix}/group_norm/gamma", f"{prefix}/group_norm/beta"), f"{_UNIT}/norm_{number}")
    yield Rule("resnet/block{s}/unit{u}/a/proj/standardized_conv2d/kernel", f"{_UNIT}/projection_conv/kernel")
    yield from _norm(("resnet/group_norm/gamma", "resnet/group_norm/beta"), "final_norm")
    yield Rule("resnet/head/conv2d/kernel", "predictions/kernel", "pointwise")
    yield Rule("resnet/head/conv2d/bias", "predictions/bias")


def _big_vision():
    yield Rule("root_block/conv_root/kernel", "stem_conv/kernel")
    for number in (1, 2, 3):
        prefix = "block{s}/unit{u}"
        yield Rule(f"{prefix}/conv{number}/kernel", f"{_UNIT}/conv_{number}/kernel")
        yield from _norm((f"{prefix}/gn{number}/scale", f"{prefix}/gn{number}/bias"), f"{_UNIT}/norm_{number}")
    yield Rule("block{s}/unit{u}/conv_proj/kernel", f"{_UNIT}/projection_conv/kernel")
    yield from _norm(("norm-pre-head/scale", "norm-pre-head/bias"), "final_norm")
    yield Rule("head/kernel", "predictions/kernel")
    yield Rule("head/bias", "predictions/bias")


def _timm():
    yield Rule("stem.conv.weight", "stem_conv/kernel", "convolution")
    for number in (1, 2, 3):
        prefix = "stages.{s}.blocks.{u}"
        yield Rule(f"{prefix}.conv{number}.weight", f"{_UNIT}/conv_{number}/kernel", "convolution")
        yield from _norm((f"{prefix}.norm{number}.weight", f"{prefix}.norm{number}.bias"), f"{_UNIT}/norm_{number}")
    yield Rule("stages.{s}.blocks.{u}.downsample.conv.weight", f"{_UNIT}/projection_conv/kernel", "convolution")
    yield from _norm(("norm.weight", "norm.bias"), "final_norm")
    yield Rule("head.fc.weight", "predictions/kernel", "pointwise_convolution")
    yield Rule("head.fc.bias", "predictions/bias")


NAMES = {
    name: Names(rules()) for name, rules in (("google", _big_transfer), ("big_vision", _big_vision), ("timm", _timm))
}
"""{project: table}. Stages and units are counted from 0, as in the names that `_name` returns."""

# The max pooling of Flax, which big_vision uses, ignores the padding. The other projects pad with zeros.
_POOLING_PADDINGS = {"google": "zeros", "big_vision": "ignored", "timm": "zeros"}
_ROOTS = {rule.name: name for name, names in NAMES.items() for rule in names.rules if rule.paths == "stem_conv/kernel"}
# Prefixes that a training state adds to the names of the model's arrays.
_PREFIX = re.compile(r"^(?:opt/target/|params/)")
# In some files of big_transfer, names of convolutions end with a number.
_NUMBERED = re.compile(r"_conv2d_\d+(?=/)")
# In Google's files, stages and units are counted from 1.
_FROM_ONE = re.compile(r"\b(block|unit)(\d+)(?=/)")


def _recognises(file):
    return _project(file) is not None


def _project(file):
    return next((_ROOTS[name] for name in map(_name, file) if name in _ROOTS), None)


def _name(old):
    name = _NUMBERED.sub("_conv2d", _PREFIX.sub("", old))
    return _FROM_ONE.sub(lambda match: f"{match[1]}{int(match[2]) - 1}", name)


def _describe(file, hints):
    settings = hints.settings["config.json"]
    project = _project(file)
    names = NAMES[project]
    renamed = Renamed(file, {_name(old): old for old in file if not old.startswith("opt/state/")})
    paths = {path: name for name in renamed for path in (names.find(name) or (None, ()))[1]}
    units = [tuple(map(int, match.groups())) for path in paths if (match := re.match(r"stage_(\d+)_unit_(\d+)/", path))]
    root = renamed.shapes[paths["stem_conv/kernel"]]  # timm: (D, C, 7, 7), Google: (7, 7, C, D)
    depths = stage_depths_of(units, hints.source, BiTResNetConfig.title)
    width, channels = root[:2] if project == "timm" else root[:1:-1]
    bias = paths.get("predictions/bias")
    size = pretrained_cfg(settings).get("input_size", ())[1:]
    size = pair(size or hints.image_size or hints.model_image_size or 224)
    classes = None if bias is None else renamed.shapes[bias][0]
    images = read_config(settings, classes, size)
    return Checkpoint(
        source=hints.source,
        format=project,
        config=BiTResNetConfig(depths, width, _POOLING_PADDINGS[project]),
        grid_size=None,
        classes=classes,
        image_size=size,
        channels=channels,
        preprocessing=images["preprocessing"] or preprocessing_of("google", size),
        label_space=images["label_space"],
        activation=images["activation"],
        read=lambda: names.decode(renamed, None),
        skipped=renamed.left_out(file),
        ignored=images["ignored"],
    )


FORMAT = Format(
    title="BiT-ResNets",
    recognises=_recognises,
    describe=_describe,
)
