"""Images for the calibration of int8 files, and the speed of these files. Shapes: N images, H W C image."""

import logging
import statistics
import time

import numpy as np

logger = logging.getLogger(__name__)

_KEPT_BACK = 4
"""Every fourth image is kept back for the comparison, and the others calibrate."""
_FEW = 80
"""With fewer images, a warning is logged."""
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
        ValueError: If there are too few images, or if all images are equal.
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
    calibrating, kept_back, first = [], [], 0
    for batch in batches:
        is_kept = np.arange(first, first + len(batch)) % _KEPT_BACK == _KEPT_BACK - 1
        calibrating.append(batch[~is_kept])
        kept_back.append(batch[is_kept])
        first += len(batch)
    return [[batch for batch in part if len(batch)] for part in (calibrating, kept_back)]


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
