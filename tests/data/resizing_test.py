"""Resized images equal those of Pillow."""

import numpy as np
import PIL.Image
import pytest

from keras_vit.data.decoding import resize_image
from keras_vit.export.parity import PHOTOGRAPHS
from tests.pictures import FILTERS, resized_by_pillow
from tests.test_case import TENSORFLOW


def _black_and_white_noise(height, width):
    """Bicubic interpolation overshoots in it by the most, so Pillow clips most values between its passes."""
    return PIL.Image.fromarray(np.random.default_rng(0).integers(0, 2, (height, width, 3), "uint8") * 255)


@pytest.mark.skipif(not TENSORFLOW, reason="TensorFlow resizes the images")
@pytest.mark.combination("bilinear and bicubic resize of noise and photographs", "as Pillow, within 1 and 2 levels")
@pytest.mark.parametrize("interpolation", FILTERS)
def test_resizes_images_like_pillow(interpolation):
    photographs = [PIL.Image.open(path).convert("RGB") for path in sorted(PHOTOGRAPHS.glob("*.jpg"))]
    noises = [_black_and_white_noise(*size) for size in ((61, 97), (97, 61), (20, 31))]
    for image in [*photographs, *noises]:
        expected = np.asarray(resized_by_pillow(image, (48, 70), interpolation)).astype(int)
        difference = np.abs(resize_image(np.asarray(image), (48, 70), interpolation).numpy() - expected)
        assert difference.max() <= FILTERS[interpolation][1]
        # TensorFlow's bilinear resize does not round between the sides.
        assert (difference > 0).mean() < {"bilinear": 0.25, "bicubic": 0.01}[interpolation]
