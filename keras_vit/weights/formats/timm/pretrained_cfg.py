"""Reads and writes what timm's `config.json` contains about images and classes, mostly in its `pretrained_cfg`."""

from keras_vit.checks import shown
from keras_vit.weights.catalogue.families import preprocessing_of
from keras_vit.weights.formats.expressible import refuse
from keras_vit.weights.formats.settings import (
    PREPARE_YOURSELF,
    check_settings,
    check_supported,
    output_of_problem,
    pair,
    read_toml,
    usable_class_names,
)

_FILE = "config.json"
_SUPPORTED = read_toml("timm/settings.toml")
_DEFAULT_CROP_PCT = 0.875


def read_image_size(config):
    """(height, width) of the images of a model with this `config.json`, or `None`."""
    size = (config.get("model_args") or {}).get("img_size") or pretrained_cfg(config).get("input_size", ())[1:]
    return pair(size or None)


def read_config(config, classes, image_size, family=None):
    """Reads what timm's `config.json` contains about images, classes and the activation.

    Args:
        config: Contents of the file, or `{}`.
        classes: Number of classes of the head, or `None`.
        image_size: (height, width) of the model's images.
        family: Key of `FAMILIES` that defines `preprocessing` if the file has no mean, or `None`.

    Returns:
        `preprocessing`, `label_space`, `output` and `ignored` of a `Checkpoint`, as a dictionary.
        `preprocessing` is `None` without a mean and a family. `output` is that of a classifier.

    Raises:
        ValueError: If a value is not supported, or if the file belongs to a model with another number of classes.
    """
    settings = pretrained_cfg(config)
    ignored = check_supported("pretrained_cfg of config.json", settings, _SUPPORTED["pretrained_cfg"], PREPARE_YOURSELF)
    if "architecture" in config and settings is not config:
        ignored |= check_supported(_FILE, config, _SUPPORTED["config"])
    if classes is not None:
        check_settings({"num_classes": config.get("num_classes", settings.get("num_classes"))}, num_classes=classes)
    ignored |= _unsupported_crop(settings, image_size)
    names, unusable = _class_names(config, settings, classes)
    is_imagenet = classes == 1000 and str(settings.get("tag")).endswith("in1k")
    return {
        "preprocessing": read_pretrained_cfg(settings, image_size) or (family and preprocessing_of(family, image_size)),
        "label_space": names or ("imagenet1k" if is_imagenet else None),
        "output": output_of_problem(config, classes),
        "ignored": ignored | unusable,
    }


def pretrained_cfg(config):
    """The `pretrained_cfg` of a `config.json`. In timm's first files, the whole file is the `pretrained_cfg`."""
    settings = config.get("pretrained_cfg")
    if settings is None:
        return config if "mean" in config else {}
    if not isinstance(settings, dict):
        raise ValueError(f"pretrained_cfg of {_FILE} must be an object. Received: {shown(settings)}")
    return settings


def _class_names(config, settings, classes):
    """(descriptions of the classes or else their names, in their order, or `None`; ignored settings)"""
    names, descriptions = (config.get(key) or settings.get(key) for key in ("label_names", "label_descriptions"))
    names = names or config.get("labels") or settings.get("labels")
    if isinstance(names, dict):
        names = [names.get(str(index)) for index in range(len(names))]
    if not names or classes is None:
        return None, {}
    if not isinstance(names, list) or len(names) != classes or None in names:
        return None, {"label_names": f"the labels in {_FILE} are not a list of {classes} names: {shown(names)}"}
    descriptions = descriptions if isinstance(descriptions, dict) else {}
    return usable_class_names([descriptions.get(name, name) for name in names], _FILE, "label_names")


def read_pretrained_cfg(settings, image_size):
    """Arguments of `Preprocessing` for a model's image size (height, width), or `None` if the settings have no mean."""
    if settings.get("mean") is None or settings.get("std") is None:
        return None
    ratio = settings.get("crop_pct") or _DEFAULT_CROP_PCT
    if not isinstance(ratio, (int, float)) or not 0.1 <= ratio <= 1:
        raise ValueError(
            f"pretrained_cfg of config.json contains crop_pct={shown(ratio)}. This package supports only numbers from "
            f"0.1 to 1: it does not pad images.{PREPARE_YOURSELF}"
        )
    return {
        "mean": tuple(settings["mean"]),
        "std": tuple(settings["std"]),
        **resize_and_crop(image_size, ratio, settings.get("crop_mode") == "squash"),
        "interpolation": settings.get("interpolation") or "bicubic",
    }


def _unsupported_crop(settings, image_size):
    """What `LoadReport.ignored` contains about a crop of images that are not square.

    timm resizes them so that they cover the crop and keep their ratio. This package resizes them to a fixed size.
    """
    height, width = image_size
    mode = settings.get("crop_mode")
    if height == width or mode == "squash" or settings.get("mean") is None:
        return {}
    problem = f"is not supported for images of {height} x {width} pixels: they are resized to a fixed height and width"
    return {"crop_mode": f"{shown(mode)} in pretrained_cfg of config.json {problem}"}


def resize_and_crop(image_size, ratio, squash):
    """`resize` and `crop` of `Preprocessing` for timm's crop ratio.

    With `squash`, and if the images are not square, images are resized to a fixed height and width.
    """
    if not squash and image_size[0] == image_size[1]:
        return {"resize": int(min(image_size) / ratio), "crop": image_size}
    resized = tuple(int(side / ratio) for side in image_size)
    return {"resize": resized, "crop": None if resized == image_size else image_size}


def write_pretrained_cfg(description):
    """Contents of `pretrained_cfg`. Raises ValueError if timm does not prepare images in this way.

    timm always resizes. If the model neither resizes nor crops images, timm resizes them to the size of the model.
    """
    height, width = description.image_size
    resize, _ = description.resize_and_crop
    return {
        "num_classes": description.classes or 0,
        "input_size": [description.channels, height, width],
        "fixed_input_size": True,
        "interpolation": description.preprocessing["interpolation"],
        "crop_pct": _crop_pct(description),
        "crop_mode": "center" if isinstance(resize, int) else "squash",
        "mean": description.by_channel("mean"),
        "std": description.by_channel("std"),
        "first_conv": _first_convolution(description.config.stem),
        "classifier": ["head", "head_dist"] if description.config.distillation_token else "head",
        **({"label_names": description.class_names} if description.class_names else {}),
    }


def _crop_pct(description):
    size, (resize, crop) = description.image_size, description.resize_and_crop
    if crop is None and resize in (None, size):
        return 1.0
    resized = (resize, resize) if isinstance(resize, int) else resize or size
    # timm computes floor(side / crop_pct) for each side.
    pairs = list(zip(size, resized, strict=True))
    lowest, highest = max(side / (length + 1) for side, length in pairs), min(side / length for side, length in pairs)
    keeps_ratio = isinstance(resize, int) and size[0] != size[1]
    if resize is None or crop != size or keeps_ratio or not lowest < highest <= 1:
        refuse("timm", [description.images])
    return 1.0 if resized == size else (lowest + highest) / 2


def _first_convolution(stem):
    if stem is None:
        return "patch_embed.proj"
    return "patch_embed.backbone.stem.conv" if stem.stage_depths else "patch_embed.backbone.conv"
