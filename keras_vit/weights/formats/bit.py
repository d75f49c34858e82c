"""Reads published weights of BiT-ResNets (arXiv 1912.11370) in the layouts of big_transfer, big_vision and timm."""

import re

from keras_vit.architectures import BiTResNetConfig
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats.describing import stage_depths_of
from keras_vit.weights.formats.format import Format
from keras_vit.weights.formats.names import Names, read_rules
from keras_vit.weights.formats.timm.pretrained_cfg import read_config, read_image_size
from keras_vit.weights.paths import UNIT

NAMES = {name: Names(read_rules("bit_names.txt", name)) for name in ("google", "big_vision", "timm")}
"""{project: table}. Stages and units are counted from 0, as in the names that `_name` returns."""

# The max pooling of Flax, which big_vision uses, ignores the padding. The other projects pad with zeros.
_POOLING_PADDINGS = {"google": "zeros", "big_vision": "ignored", "timm": "zeros"}
_ROOTS = {
    rule.name: name for name, names in NAMES.items() for rule in names.rules if rule.paths == ("stem_conv/kernel",)
}
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
    root = renamed.shapes[paths["stem_conv/kernel"]]  # timm: (D, C, 7, 7), Google: (7, 7, C, D)
    depths = stage_depths_of(paths, UNIT, BiTResNetConfig.title)
    width, channels = root[:2] if project == "timm" else root[:1:-1]
    bias = paths.get("predictions/bias")
    size = read_image_size(settings) or hints.image_size or hints.model_image_size or (224, 224)
    classes = None if bias is None else renamed.shapes[bias][0]
    return Checkpoint(
        format=project,
        config=BiTResNetConfig(depths, width, _POOLING_PADDINGS[project]),
        grid_size=None,
        classes=classes,
        image_size=size,
        channels=channels,
        read=lambda: names.decode(renamed, None),
        skipped=renamed.left_out,
        **read_config(settings, classes, size, "google"),
    )


FORMAT = Format(
    title="BiT-ResNets",
    recognises=_recognises,
    describe=_describe,
)
