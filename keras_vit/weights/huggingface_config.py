"""Reads and writes model types, classes and image preparation in the JSON files of transformers."""

import re

from keras_vit.weights.adapt import adapt_pixels
from keras_vit.weights.settings import pair

_MODEL_TYPES = (
    *("vit", "vit_mae", "vit_msn", "deit", "ijepa", "dinov2", "dinov2_with_registers", "dinov3_vit"),
    *("siglip", "siglip_vision_model", "clip", "clip_vision_model", "metaclip_2", "metaclip_2_vision_model"),
)
"""Values of `model_type` in `config.json` for models whose image encoder can be read."""
_UNSUPPORTED = {
    "beit": ("BEiT", "relative positions"),
    "data2vec-vision": ("data2vec", "relative positions"),
    "yolos": ("YOLOS", "detection tokens behind the patches"),
    "vitpose": ("ViTPose", "patches of padded images"),
    "vitpose_backbone": ("ViTPose", "patches of padded images"),
    "eomt": ("EoMT", "queries for masks between its blocks"),
    "eomt_dinov3": ("EoMT", "queries for masks between its blocks"),
    "depth_anything": ("Depth Anything", "a decoder for depth maps"),
    "siglip2": ("SigLIP 2 NaFlex", "patches instead of images as inputs"),
    "siglip2_vision_model": ("SigLIP 2 NaFlex", "patches instead of images as inputs"),
}
"""{`model_type`: (name of the model, unsupported feature)}"""
# For files without config.json: (pattern, `model_type`). Only models of this type have arrays whose names match.
_UNSUPPORTED_NAMES = (
    (r"relative_position_bias_table$|\.lambda_[12]$", "beit"),
    (r"detection_tokens$", "yolos"),
    (r"^head\.(conv|deconv1)\.weight$", "vitpose"),
    (r"^mask_head\.", "eomt"),
    (r"^neck\.", "depth_anything"),
)
_SUPPORTED = {"pooler_act": "tanh", "proj_bias": True, "mlp_bias": True}
"""{name of a setting: the only supported value}"""

_DEFAULT_NAME = "LABEL_{}"
"""Default name of a class in transformers."""


def check_kind(file, config, settings):
    """Checks that the kind of model and its settings are supported.

    Args:
        file: {name: array} with an attribute `shapes`.
        config: Contents of the config.json, or `{}`.
        settings: Settings of the image encoder in `config`.

    Raises:
        ValueError: If the kind or a setting is unsupported. The message contains its name.
    """
    model_type = config.get("model_type") or _unsupported_type(file)
    if model_type in _UNSUPPORTED:
        title, feature = _UNSUPPORTED[model_type]
        raise ValueError(f"transformers' {title} has {feature}, which this package does not support.")
    if model_type is not None and model_type not in _MODEL_TYPES:
        raise ValueError(
            f"Its config.json has the model type {model_type!r} of transformers, which is not supported. Accepted: "
            f"{', '.join(_MODEL_TYPES)}"
        )
    for name, value in _SUPPORTED.items():
        if settings.get(name, value) != value:
            raise ValueError(
                f"Its config.json contains {name}={settings[name]!r}. This package supports only {name}={value!r}."
            )


def _unsupported_type(file):
    """Key of `_UNSUPPORTED` for a file without config.json, or `None`."""
    if any(name.endswith("embeddings.patch_embedding.weight") and len(file.shapes[name]) == 2 for name in file):
        return "siglip2"
    return next((kind for pattern, kind in _UNSUPPORTED_NAMES if any(re.search(pattern, name) for name in file)), None)


def read_rotary_base(settings):
    """Base of the rotary positions, which DINOv3's config stores in one of two places."""
    parameters = settings.get("rope_parameters") or {}
    if parameters.get("rope_type", "default") != "default":
        raise ValueError(f"Rotary positions of the type {parameters['rope_type']!r} are not supported.")
    return settings.get("rope_theta") or parameters.get("rope_theta") or 100.0


def read_class_names(config, classes):
    """Names of the classes in their order, or `None` if the config contains no names or only default names."""
    names = config.get("id2label", {})
    names = [names.get(str(index)) for index in range(classes or 0)]
    are_complete = all(isinstance(name, str) and name for name in names)
    defaults = [_DEFAULT_NAME.format(index) for index in range(len(names))]
    return names if names and are_complete and names != defaults else None


def write_class_names(facts):
    """The settings in `config.json` that contain the class names of `Facts`."""
    names = facts.class_names or [_DEFAULT_NAME.format(index) for index in range(facts.classes)]
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def read_processor(processor, image_size):
    """Arguments of `Preprocessing` for images of `image_size`, (height, width). `None` if the file has no mean."""
    if "image_mean" not in processor:
        return None
    normalizes = processor.get("do_normalize", True)
    crop = processor.get("crop_size") if processor.get("do_center_crop") else None
    crop = pair(crop) if isinstance(crop, int) else crop and (crop["height"], crop["width"])
    resize = processor.get("size", image_size[0])
    if isinstance(resize, dict):
        resize = resize.get("shortest_edge") or (resize["height"], resize["width"])
    elif not crop:  # Without a centre crop, one number is the side of a square, not the short side.
        resize = pair(resize)
    pixels = {
        "mean": tuple(processor["image_mean"]) if normalizes else 0.0,
        "std": tuple(processor["image_std"]) if normalizes else 1.0,
        "resize": resize,
        "crop": crop,
        "interpolation": "bicubic" if processor.get("resample") == 3 else "bilinear",  # In PIL, 3 is bicubic.
    }
    # The processor's image size may be smaller than the model's. For DINOv2, the sizes are 224 and 518.
    return adapt_pixels(pixels, image_size, crop or pair(resize), len(processor["image_mean"]))


def write_processor(facts):
    """Contents of `preprocessor_config.json` for `Facts`."""
    resize, crop = facts.pixels["resize"], facts.pixels["crop"]
    size = {"shortest_edge": resize} if isinstance(resize, int) else {"height": resize[0], "width": resize[1]}
    processor = {
        "image_processor_type": "ViTImageProcessor" if crop is None else "BitImageProcessor",
        "do_resize": True,
        "size": size,
        "resample": 3 if facts.pixels["interpolation"] == "bicubic" else 2,
        "do_center_crop": crop is not None,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": facts.by_channel("mean"),
        "image_std": facts.by_channel("std"),
    }
    return processor if crop is None else {**processor, "crop_size": {"height": crop[0], "width": crop[1]}}
