"""Reads and writes model types, classes and image preparation in the JSON files of transformers."""

import re

from keras_vit.checks import MAX_SIDE, check_flag, check_positive, check_size, shown
from keras_vit.weights.adapt import adapt_preprocessing
from keras_vit.weights.formats.settings import PREPARE_YOURSELF, check_supported, pair, read_toml, usable_class_names

_TABLE = read_toml("huggingface/settings.toml")
PROCESSORS = _TABLE["processors"]
"""{type of an image processor of transformers, without "ImageProcessor": its defaults}"""
_SUFFIX = re.compile(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$")
_PROCESSOR_FILE = "preprocessor_config.json"
_FLAGS = {"do_normalize", "do_rescale", "do_resize", "default_to_square", "do_center_crop", "do_pad"}

_DEFAULT_NAME = "LABEL_{}"
"""Default name of a class in transformers."""


def check_kind(file, config, settings):
    """Checks that the kind of model and its settings are supported.

    Args:
        file: {name: array} with an attribute `shapes`.
        config: Contents of the config.json, or `{}`.
        settings: Settings of the image encoder in `config`.

    Returns:
        The unknown settings, as in `LoadReport.ignored`.

    Raises:
        ValueError: If the kind or a setting is unsupported. The message contains its name.
    """
    model_type = config.get("model_type") or _unsupported_type(file)
    if model_type in _TABLE["unsupported"]:
        title, feature = _TABLE["unsupported"][model_type]
        raise ValueError(f"transformers' {title} has {feature}, which this package does not support.")
    if model_type is not None and model_type not in _TABLE["model_types"]:
        raise ValueError(
            f"Its config.json has the model type {model_type!r} of transformers, which is not supported. Accepted: "
            f"{', '.join(_TABLE['model_types'])}"
        )
    return check_supported("config.json", settings, _TABLE["config"])


def encoder_settings(config, section, model_type, epsilon):
    """The settings of the encoder in the config.json of a model whose own settings stand beside them.

    Args:
        config: Contents of the config.json.
        section: Section of `settings.toml` with the model's own settings.
        model_type: Type of the encoder.
        epsilon: Epsilon of its LayerNorms, if the config does not contain it.
    """
    own = (*_TABLE[section]["any_value"], "id2label", "label2id")
    settings = {name: value for name, value in config.items() if name not in own}
    return {"layer_norm_eps": epsilon, **settings, "model_type": model_type}


def _unsupported_type(file):
    """The unsupported `model_type` of a file without config.json, or `None`."""
    patterns = _TABLE["unsupported_names"].items()
    return next((kind for pattern, kind in patterns if any(re.search(pattern, name) for name in file)), None)


def read_rotary_base(settings):
    """Base of the rotary positions, which DINOv3's config stores in one of two places."""
    parameters = settings.get("rope_parameters") or {}
    if parameters.get("rope_type", "default") != "default":
        raise ValueError(f"Rotary positions of the type {parameters['rope_type']!r} are not supported.")
    return settings.get("rope_theta") or parameters.get("rope_theta") or 100.0


def read_class_names(config, classes):
    """(names of the classes in their order or `None`, what `LoadReport.ignored` contains about them)

    The names are `None` if the config contains no names, or only default names. Raises ValueError if the config belongs
    to a model with another number of classes.
    """
    labels = config.get("id2label") or {}
    num_labels = len(labels) or config.get("num_labels")
    if num_labels and num_labels != classes:
        raise ValueError(
            f"The configuration beside the weights belongs to another model: it contains {num_labels} labels, but the "
            f"classifier has {classes} classes."
        )
    names = [labels.get(str(index)) for index in range(len(labels))]
    if not names or names == [_DEFAULT_NAME.format(index) for index in range(len(names))]:
        return None, {}
    return usable_class_names(names, "config.json", "id2label")


def write_class_names(description):
    """The settings in `config.json` that contain the class names of a `ModelDescription`."""
    names = description.class_names or [_DEFAULT_NAME.format(index) for index in range(description.classes)]
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def read_processor(processor, image_size):
    """Reads the settings of an image processor.

    Args:
        processor: Contents of the file, or `{}`.
        image_size: (height, width) of the model's images.

    Returns:
        `preprocessing` and `ignored` of a `Checkpoint`, as a dictionary. `preprocessing` is `None` if the file does not
        define how pixels are normalised.

    Raises:
        ValueError: If a setting is unsupported.
    """
    ignored = check_supported(_PROCESSOR_FILE, processor, _TABLE["processor"], PREPARE_YOURSELF)
    kind = processor.get("image_processor_type") or processor.get("feature_extractor_type")
    defaults = PROCESSORS.get(_SUFFIX.sub("", str(kind)), {})
    if kind is not None and not defaults:
        ignored["image_processor_type"] = f"{shown(kind)} in {_PROCESSOR_FILE} is unknown and has no effect"
    # `None` is the same as no setting, but transformers reads a flag that is `None` as `False`.
    given = {name: False if value is None and name in _FLAGS else value for name, value in processor.items()}
    settings = {**defaults, **{name: value for name, value in given.items() if value is not None}}
    for name in _FLAGS & settings.keys():
        check_flag(f"{name} of {_PROCESSOR_FILE}", settings[name])
    resize = _resize(settings)
    if isinstance(resize, int) and not settings.get("do_center_crop"):
        ignored["size"] = f"without a crop, {settings['size']} leads to images of various sizes, which are not accepted"
    preprocessing = _normalization(settings)
    if preprocessing is None:
        return {"preprocessing": None, "ignored": ignored}
    if "size" not in settings:
        resize = _resize({**settings, "size": image_size})
    crop = _crop(settings)
    _check_padding(settings, resize, crop)
    preprocessing |= {
        "resize": resize,
        "crop": crop,
        "interpolation": "bicubic" if settings.get("resample") == 3 else "bilinear",
    }
    # The processor's image size may be smaller than the model's. For DINOv2, the sizes are 224 and 518.
    mean = preprocessing["mean"]
    channels = len(mean) if isinstance(mean, tuple) else 1
    preprocessing = adapt_preprocessing(preprocessing, image_size, crop or pair(resize) or image_size, channels)
    return {"preprocessing": preprocessing, "ignored": ignored}


def _normalization(settings):
    """`mean` and `std` for `(x * rescale_factor - image_mean) / image_std`, or `None` if they are unknown."""
    mean, std = 0.0, 1.0
    if settings.get("do_normalize", True):
        mean, std = settings.get("image_mean"), settings.get("image_std")
        if mean is None or std is None:
            return None
    factor = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1
    check_positive("rescale_factor", factor)
    scale = 255 * factor  # `Preprocessing` divides pixels by 255.
    values = (tuple(each / scale for each in x) if isinstance(x, (list, tuple)) else x / scale for x in (mean, std))
    return dict(zip(("mean", "std"), values, strict=True))


def _crop(settings):
    """(height, width) of the centre that is cut out, or `None`."""
    if not settings.get("do_center_crop"):
        return None
    size = _without_none(settings.get("crop_size"))
    if isinstance(size, dict):
        size = (size["height"], size["width"]) if size.keys() == {"height", "width"} else None
    if size is None:
        raise ValueError(
            f"{_PROCESSOR_FILE} contains do_center_crop=True with crop_size={shown(settings.get('crop_size'))}. Add "
            f"crop_size with height and width, or set do_center_crop to false."
        )
    return pair(size)


def _resize(settings):
    """`Preprocessing.resize` for the settings of an image processor."""
    size = _without_none(settings.get("size"))
    if size is None or not settings.get("do_resize", True):
        return None
    # Without a type, one number is the side of a square, unless the image is cropped.
    is_square = settings.get("default_to_square", not settings.get("do_center_crop"))
    if isinstance(size, int) and not is_square:
        size = {"shortest_edge": size}
    if isinstance(size, (int, list, tuple)):
        return pair(size)
    if isinstance(size, dict) and size.keys() == {"height", "width"}:
        return pair((size["height"], size["width"]))
    if isinstance(size, dict) and size.keys() == {"shortest_edge"}:
        return check_size("shortest_edge of size", size["shortest_edge"], MAX_SIDE)
    raise ValueError(
        f"{_PROCESSOR_FILE} contains size={shown(size)}. This package supports only height and width, or shortest_edge."
        f"{PREPARE_YOURSELF}"
    )


def _without_none(size):
    return {name: side for name, side in size.items() if side is not None} if isinstance(size, dict) else size


def _check_padding(settings, resize, crop):
    """Checks that images are not padded: by a crop that is larger than the image, or by `do_pad`."""
    final = crop or resize
    resized = (resize, resize) if isinstance(resize, int) else resize or final
    if crop and any(side < cut for side, cut in zip(resized, crop, strict=True)):
        raise ValueError(
            f"{_PROCESSOR_FILE} contains crop_size={shown(settings['crop_size'])}, which is larger than size="
            f"{shown(settings.get('size'))}. This package does not pad images.{PREPARE_YOURSELF}"
        )
    padded = settings.get("pad_size", final)
    padded = (padded.get("height"), padded.get("width")) if isinstance(padded, dict) else padded
    if settings.get("do_pad") and (not isinstance(final, tuple) or padded != final):
        raise ValueError(
            f"{_PROCESSOR_FILE} contains do_pad=True and pad_size={shown(settings.get('pad_size'))}. This package does "
            f"not pad images.{PREPARE_YOURSELF}"
        )


def write_processor(description):
    """Contents of `preprocessor_config.json`. `do_resize` is false if the model does not resize images."""
    resize, crop = description.resize_and_crop
    processor = {
        "image_processor_type": "ViTImageProcessor" if crop is None else "BitImageProcessor",
        "do_resize": resize is not None,
        "resample": 3 if description.preprocessing["interpolation"] == "bicubic" else 2,
        "do_center_crop": crop is not None,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": description.by_channel("mean"),
        "image_std": description.by_channel("std"),
    }
    if resize is not None:
        processor["size"] = {"shortest_edge": resize} if isinstance(resize, int) else _sides(resize)
    return processor if crop is None else {**processor, "crop_size": _sides(crop)}


def _sides(size):
    return dict(zip(("height", "width"), size, strict=True))
