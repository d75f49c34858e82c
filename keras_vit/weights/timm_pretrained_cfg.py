"""Reads and writes `pretrained_cfg` of timm's `config.json`, which defines how images are prepared."""


def read_pretrained_cfg(settings, image_size):
    """Arguments of `Preprocessing` for a model's image size (height, width), or `None` if the settings have no mean."""
    if "mean" not in settings:
        return None
    ratio = settings.get("crop_pct") or 1.0
    if not isinstance(ratio, (int, float)) or not 0.1 <= ratio <= 10:
        raise ValueError(f"crop_pct must be a number near 1. Received: {ratio!r}")
    return {
        "mean": tuple(settings["mean"]),
        "std": tuple(settings["std"]),
        **resize_and_crop(image_size, ratio, settings.get("crop_mode") == "squash"),
        "interpolation": settings.get("interpolation") if settings.get("interpolation") == "bilinear" else "bicubic",
        "label_space": "imagenet1k" if settings.get("tag", "").endswith("in1k") else None,
    }


def resize_and_crop(image_size, ratio, squash):
    """`resize` and `crop` of `Preprocessing` for timm's crop ratio. `squash`: images are resized to a fixed size."""
    if not squash:
        return {"resize": int(min(image_size) / ratio), "crop": image_size}
    resized = tuple(int(side / ratio) for side in image_size)
    return {"resize": resized, "crop": None if resized == image_size else image_size}


def write_pretrained_cfg(facts):
    """Contents of `pretrained_cfg` for `Facts`."""
    height, width = facts.image_size
    resize, crop = facts.pixels["resize"], facts.pixels["crop"]
    return {
        "num_classes": facts.classes or 0,
        "input_size": [facts.channels, height, width],
        "fixed_input_size": True,
        "interpolation": facts.pixels["interpolation"],
        # timm truncates resize = size / crop_pct to an integer.
        "crop_pct": min(height, width) / (resize + 0.5) if isinstance(resize, int) else 1.0,
        "crop_mode": "squash" if crop is None else "center",
        "mean": facts.by_channel("mean"),
        "std": facts.by_channel("std"),
        "first_conv": _first_convolution(facts.config.stem),
        "classifier": ["head", "head_dist"] if facts.config.distillation_token else "head",
    }


def _first_convolution(stem):
    if stem is None:
        return "patch_embed.proj"
    return "patch_embed.backbone.stem.conv" if stem.stage_depths else "patch_embed.backbone.conv"
