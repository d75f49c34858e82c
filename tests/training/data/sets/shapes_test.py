"""The drawn shapes never change, and their masks match the images."""

import hashlib

import numpy as np

from training.data.masks import read_values
from training.data.sets.shapes import CLASS_NAMES, NUM_IMAGES, SIDE, draw, encoded


def test_an_image_follows_from_its_number():
    for split in NUM_IMAGES:
        image, mask = draw(split, 3)
        assert image.shape == (SIDE, SIDE, 3)
        np.testing.assert_array_equal(read_values(encoded(split, 3)[1]), mask)
    drawn = [encoded(split, number)[0] for split in NUM_IMAGES for number in range(5)]
    assert len(set(drawn)) == 10


def test_masks_are_the_shapes():
    images, masks = map(np.stack, zip(*[draw("test", number) for number in range(60)], strict=True))
    counts = np.bincount(masks.ravel(), minlength=len(CLASS_NAMES)) / masks.size
    assert len(counts) == len(CLASS_NAMES)
    assert counts.min() > 0.02
    # Shapes are bright and the background is dark.
    assert images[masks > 0].mean() > images[masks == 0].mean() + 50


def test_the_images_stay_as_they_are():
    """Results on the shapes are comparable only if the images never change."""
    pixels = b"".join(part.tobytes() for number in range(3) for part in draw("train", number))
    assert hashlib.sha256(pixels).hexdigest()[:16] == "f6a95c5055cbd796"
