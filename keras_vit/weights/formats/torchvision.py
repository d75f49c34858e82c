"""Reads published weights of ResNets (arXiv 1512.03385) in the layout of torchvision, which timm also uses."""

import re

from keras_vit.architectures import ResNetConfig
from keras_vit.weights.catalogue.families import preprocessing_of
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats.describing import stage_depths_of
from keras_vit.weights.formats.format import Format
from keras_vit.weights.formats.names import Names, read_rules
from keras_vit.weights.formats.timm.pretrained_cfg import read_config, read_image_size

NAMES = Names(read_rules("torchvision_names.txt"), ignored=(r".*\.num_batches_tracked",))
"""Table in which stages are counted from 0, as in the names that `_name` returns."""

# Prefixes that a training state adds to the names of the model's arrays.
_PREFIX = re.compile(r"^(?:(?:model|state_dict)/)?(?:module\.)?")
_FROM_ONE = re.compile(r"^layer(\d+)\.")
# Names of a ResNet's first kernel. The second name is for stems with three convolutions instead of one.
_ROOTS = ("conv1.weight", "conv1.0.weight")
# {first digits of the SHA-256, which are part of the file's name: short side of the resized images in the evaluation}.
# Source: `ResNet50_Weights` and so on in torchvision/models/resnet.py.
RESIZES = {
    "f37072fd": 256,  # ResNet-18
    "b627a593": 256,  # ResNet-34
    "0676ba61": 256,  # ResNet-50, IMAGENET1K_V1
    "11ad3fa6": 232,  # ResNet-50, IMAGENET1K_V2
    "63fe2227": 256,  # ResNet-101, IMAGENET1K_V1
    "cd907fc2": 232,  # ResNet-101, IMAGENET1K_V2
}


def _recognises(file):
    names = {_PREFIX.sub("", name) for name in file}
    return not names.isdisjoint(_ROOTS) and any(_FROM_ONE.match(name) for name in names)


def _name(old):
    return _FROM_ONE.sub(lambda match: f"layer{int(match[1]) - 1}.", _PREFIX.sub("", old))


def _describe(file, hints):
    settings = hints.settings["config.json"]
    architecture = settings.get("architecture", "resnet").split(".")[0]
    if not re.fullmatch(r"resnet\d*", architecture):
        _refuse(f"its config.json contains {architecture!r}")
    names = {_name(old): old for old in file}
    renamed = Renamed(file, {name: old for name, old in names.items() if "/" not in name})
    shapes = renamed.shapes
    if _ROOTS[0] not in shapes:
        _refuse("its stem has more than one convolution")
    config = ResNetConfig(
        stage_depths_of(shapes, r"layer(\d+)\.(\d+)\.", ResNetConfig.title),
        width=shapes["conv1.weight"][0],
        expansion=4 if "layer0.0.conv3.weight" in shapes else 1,
    )
    _check_units(renamed, names, config)
    size = read_image_size(settings) or (224, 224)
    classes = shapes["fc.weight"][0] if "fc.weight" in shapes else None
    facts = _with_published(read_config(settings, classes, size), hints.source, classes, size)
    return Checkpoint(
        config=config,
        grid_size=None,
        classes=classes,
        image_size=size,
        channels=shapes["conv1.weight"][1],
        read=lambda: NAMES.decode(renamed, None),
        skipped=(*renamed.left_out, *(names[name] for name in renamed if NAMES.ignores(name))),
        **facts,
    )


def _with_published(facts, source, classes, size):
    """Adds what the name of a file of torchvision says about its images and classes to the result of `read_config`."""
    digits = re.search(r"resnet\d+-([0-9a-f]{8})\.pth$", source)
    published = RESIZES.get(digits[1]) if digits else None
    preprocessing = preprocessing_of("torchvision", size)
    if published:
        preprocessing["resize"] = published
    return facts | {
        "preprocessing": facts["preprocessing"] or preprocessing,
        "label_space": facts["label_space"] or ("imagenet1k" if published and classes == 1000 else None),
    }


def _check_units(renamed, names, config):
    """Refuses ResNets with gates, with other norms, or with wide or grouped convolutions, by their names and shapes."""
    unknown = [names[name] for name in renamed if NAMES.find(name) is None and not NAMES.ignores(name)]
    if unknown:
        _refuse(f"it has {', '.join(unknown[:3])}{' and others' if len(unknown) > 3 else ''}")
    if "bn1.running_mean" not in renamed.shapes:
        _refuse("its norms have no moving means and variances")
    for name, shape in renamed.shapes.items():
        if match := re.fullmatch(r"layer(\d+)\.\d+\.conv([12])\.weight", name):
            width = config.width * 2 ** int(match[1])
            expected = (width,) if match[2] == "1" else (width, width)
            if shape[: len(expected)] != expected:
                _refuse(f"{names[name]} has the shape {shape}, and the units of this stage have {width} channels")


def _refuse(reason):
    raise ValueError(
        f"The file contains an unsupported kind of ResNet: {reason}. ResNets such as ResNet-18, 34, 50 and 101 are "
        f"supported. Wide ResNets, ResNeXt, ResNet-D and ResNets with attention are not."
    )


FORMAT = Format(
    title="the ResNets of torchvision and timm",
    recognises=_recognises,
    describe=_describe,
)
