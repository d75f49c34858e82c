"""Images for the calibration of int8 files, and the speed of these files. Shapes: N images, H W C image."""

import logging
import pathlib
import statistics
import time

import numpy as np

logger = logging.getLogger(__name__)

_KEPT_BACK = 4
"""Every fourth image is kept back for the comparison, and the others calibrate."""
_FEW = 80
"""With fewer images, a warning is logged."""
_SMALL_SPREAD = 20
"""A warning is logged if the standard deviation of the pixels of an image, the median of all images, is smaller.

It is about 60 levels of 255 for photographs, and 96 for the digits of scikit-learn. Files of a published Ti/16 were
calibrated with 36 images of less contrast, and predicted 120 photographs. With photographs of half the contrast, the
class was the same for 93 % in ONNX Runtime and 63 % in OpenVINO (full contrast: 96 and 94 %); with a quarter, 90 and
37 %; with gray surfaces (3 to 20 levels) or nearly black images, 48 to 69 % and 0 to 10 %. The limit is below half the
contrast, so that images of moderate contrast cause no warning.
"""
_NO_SPREAD = 0.5
"""Images of one color, also with noise of a lossy format, have a smaller standard deviation. They are refused."""
_FEW_CLASSES = 0.25
"""A warning is logged if a model predicts at most this share of the classes that are possible for the compared images.

For 50 images of one photograph that was shifted, cropped, or changed by noise, Ti/16 predicts 1 to 7 classes, a share
of at most 0.14. Files that 36 such images calibrate (shifted, or with noise) keep the class of 81 % of the photographs
in ONNX Runtime. The share is at least 0.4 for photographs of one kind of object, and 0.53 for eight kinds. A model for
digits predicts all ten.
"""
_SLOWER = 0.97
"""Relative speed below which an int8 file is slower. Smaller differences are noise."""
_VNNI = {"avx512_vnni", "avx_vnni"}
"""Names of the instructions for products of 8-bit integers in `/proc/cpuinfo`, for processors of Intel and AMD."""
_NEEDS_VNNI = ("onnx", "openvino")
"""Formats whose int8 files are known to be slow without these instructions."""
_CPUINFO = pathlib.Path("/proc/cpuinfo")
_ROUNDS = 9
_PAUSE = 0.02
"""Seconds before a request. After a request, the threads of some runtimes wait actively for a while."""


def split_images(batches):
    """Splits images into those that calibrate, and those that are kept back for the comparison.

    Args:
        batches: List of arrays (N, H, W, C). The arrays can have different sizes.

    Returns:
        Two lists of arrays (N, H, W, C). Together they contain all images.

    Raises:
        ValueError: If there are too few images, if all images are equal, or if most have one color each.
    """
    num_images = sum(map(len, batches))
    if num_images < _KEPT_BACK:
        raise ValueError(
            f"precision='int8' needs at least {_KEPT_BACK} images, because every fourth image is kept back for the "
            f"comparison. A few hundred are better. Received: {num_images} image{'s' if num_images > 1 else ''}"
        )
    if num_images < _FEW:
        logger.warning(
            "precision='int8' got only %d images. The ranges of the integers and the agreement with the model are "
            "uncertain. Give a few hundred images like those that will be served.",
            num_images,
        )
    first_image = batches[0][0]
    if all(batch.shape[1:] == first_image.shape and (batch == first_image).all() for batch in batches):
        raise ValueError(
            "All images are equal, so the ranges of int8 values cannot be chosen by them. Give images like those that "
            "will be served."
        )
    spread = np.median([image.std(axis=(0, 1), dtype="float64").mean() for batch in batches for image in batch])
    if spread < _NO_SPREAD:
        raise ValueError(
            "More than half of the images have one color each, so the ranges of int8 values cannot be chosen by them. "
            "Give images like those that will be served."
        )
    if spread < _SMALL_SPREAD:
        logger.warning(
            "The images for precision='int8' have little contrast: the standard deviation of the pixels of an image is "
            "%.1f of 255 (median). For images with more contrast, the file may give wrong answers. Give images like "
            "those that will be served.",
            spread,
        )
    calibrating, kept_back, first = [], [], 0
    for batch in batches:
        is_kept = np.arange(first, first + len(batch)) % _KEPT_BACK == _KEPT_BACK - 1
        calibrating.append(batch[~is_kept])
        kept_back.append(batch[is_kept])
        first += len(batch)
    return [[batch for batch in part if len(batch)] for part in (calibrating, kept_back)]


def warn_of_few_classes(predicted_classes, num_images, num_classes):
    """Logs a warning if a model predicts so few classes for the compared images that the agreement shows little.

    Args:
        predicted_classes: Number of classes that the model predicts for these images.
        num_images: Number of these images.
        num_classes: Number of classes of the model.
    """
    if num_classes > 1 and predicted_classes <= max(1, _FEW_CLASSES * min(num_images, num_classes)):
        logger.warning(
            "The model predicts only %d of its %d classes for the %d images that are compared. So the agreement of the "
            "int8 file with the model shows little, and the ranges of its integers may be wrong for other images. Give "
            "images that differ as much as those that will be served.",
            *(predicted_classes, num_classes, num_images),
        )


def each_image(batches):
    """Yields the images of arrays (N, H, W, C), one at a time: float32 (1, H, W, C)."""
    return (image[None].astype("float32") for batch in batches for image in batch)


def relative_speed(slow, fast, image):
    """Measures how many times as fast as another function a function is. They are called in turns.

    Args:
        slow: Function from images to their outputs.
        fast: The function whose speed is returned.
        image: float32 (1, H, W, C)

    Returns:
        Median of the ratios of their times.
    """
    times = {slow: [], fast: []}
    for function in (slow, fast):
        function(image)  # The first call allocates memory.
    for _ in range(_ROUNDS):
        for function in (slow, fast):
            time.sleep(_PAUSE)
            begun = time.perf_counter()
            function(image)
            times[function].append(time.perf_counter() - begun)
    return statistics.median(one / two for one, two in zip(times[slow], times[fast], strict=True))


def warn_if_slower(name, speed, format):
    """Logs a warning if an int8 file, whose format is a key of `FORMATS`, is slower than its float32 file."""
    if speed >= _SLOWER:
        return
    flags = set(_CPUINFO.read_text().split()) if _CPUINFO.is_file() else set()
    lacks_vnni = format in _NEEDS_VNNI and "sse2" in flags and not flags & _VNNI
    reason = ", which has no VNNI instructions for products of 8-bit integers" if lacks_vnni else ""
    logger.warning(
        "%s: One image takes %.2f times as long as with the float32 file on this processor%s. Use a float32 file, "
        "unless the size matters.",
        *(name, 1 / speed, reason),
    )
