"""Generated images for segmentation: shapes on a background. An image depends only on its split and number."""

import numpy as np

from training.data.masks import encode_png

CLASS_NAMES = ("background", "disc", "square", "triangle")
SIDE = 64  # Height and width of the images in pixels.
NUM_IMAGES = {"train": 1200, "test": 120}
_FIRST = {"train": 0, "test": 1_000_000}  # Seed of each split's first image. The splits have no seed in common.
_MOST_SHAPES = 3
_RADIUS = 10, 18  # Minimum and maximum, in pixels.
_DARK, _BRIGHT = (0, 110), (130, 256)  # Ranges of the colour values of the background and of the shapes.


def draw(split, index):
    """Draws an image of one to three shapes that do not overlap, and its mask.

    Args:
        split: "train" or "test".
        index: Number of the image, from 0.

    Returns:
        Pixels, uint8 (64, 64, 3), and their classes, uint8 (64, 64), as indices in `CLASS_NAMES`.
    """
    rng = np.random.default_rng(_FIRST[split] + index)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    image = rng.integers(*_DARK, 3) + _texture(rng, rows, columns)
    mask = np.zeros((SIDE, SIDE), "uint8")
    for _ in range(rng.integers(1, _MOST_SHAPES + 1)):
        label, radius = rng.integers(1, len(CLASS_NAMES)), rng.uniform(*_RADIUS)
        top, left = rng.uniform(radius, SIDE - radius, 2)
        inside = _is_inside(label, (rows - top) / radius, (columns - left) / radius, rng.uniform(0, 2 * np.pi))
        if mask[inside].any():  # Overlapping shapes are left out: the class of a partly covered one may be ambiguous.
            continue
        image[inside] = rng.integers(*_BRIGHT, 3) + _texture(rng, rows, columns)[inside]
        mask[inside] = label
    return np.clip(np.rint(image), 0, 255).astype("uint8"), mask


def encoded(split, index):
    """The image and the mask of `draw`, as the bytes of two PNG files."""
    return tuple(map(encode_png, draw(split, index)))


def _is_inside(label, y, x, angle):
    """Whether points are inside a shape at the origin that is about as large as a unit disc. `angle` is in radians."""
    y, x = np.cos(angle) * y - np.sin(angle) * x, np.sin(angle) * y + np.cos(angle) * x
    if CLASS_NAMES[label] == "disc":
        return y**2 + x**2 < 1
    if CLASS_NAMES[label] == "square":
        return np.maximum(abs(y), abs(x)) < 0.9
    return (y < 0.65) & (np.sqrt(3) * abs(x) - y < 1.3)


def _texture(rng, rows, columns):
    """Waves and noise with mean 0, (64, 64, 1)."""
    frequencies, phase = rng.uniform(-0.8, 0.8, 2), rng.uniform(0, 2 * np.pi)
    waves = 20 * np.sin(frequencies[0] * rows + frequencies[1] * columns + phase)
    return (waves + rng.normal(0, 8, rows.shape))[..., None]
