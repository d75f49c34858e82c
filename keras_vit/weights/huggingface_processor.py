"""How images are prepared: `preprocessor_config.json` of Hugging Face transformers, read and written."""

from keras_vit.weights.adapt import adapt_pixels
from keras_vit.weights.checkpoint import pair


def read_processor(processor, image_size):
    """Arguments of `Preprocessing` for images of (height, width); `None` if the file does not say."""
    if "image_mean" not in processor:
        return None
    normalizes = processor.get("do_normalize", True)
    crop = processor.get("crop_size") if processor.get("do_center_crop") else None
    crop = pair(crop) if isinstance(crop, int) else crop and (crop["height"], crop["width"])
    resize = processor.get("size", image_size[0])
    if isinstance(resize, dict):
        resize = resize.get("shortest_edge") or (resize["height"], resize["width"])
    elif not crop:  # A bare number is the short side only where the centre is cut out.
        resize = pair(resize)
    pixels = {
        "mean": tuple(processor["image_mean"]) if normalizes else 0.0,
        "std": tuple(processor["image_std"]) if normalizes else 1.0,
        "resize": resize,
        "crop": crop,
        "interpolation": "bicubic" if processor.get("resample") == 3 else "bilinear",  # PIL's numbers.
    }
    # The processor's sizes may be smaller than the model's: DINOv2 says 224 here and 518 in config.json.
    return adapt_pixels(pixels, image_size, crop or pair(resize), len(processor["image_mean"]))


def write_processor(facts):
    """The contents of the file, of `Facts`."""
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
