"""Each affine change alone does what it is defined to do."""

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf

from training.data.augment.affine import flip, move
from training.recipe.config import Augment

IMAGE = np.random.default_rng(0).integers(0, 256, (7, 9, 3)).astype("uint8")


def draws(seed):
    """The five random numbers in [-1, 1] of a change: angle, size, mirror, shift right, shift down."""
    return tf.random.stateless_uniform([5], seed, -1.0, 1.0).numpy()


def test_flip_mirrors_half_of_the_images():
    results = [flip({"image": tf.constant(IMAGE)}, (0, i))["image"].numpy() for i in range(200)]
    mirrored = [np.array_equal(result, IMAGE[:, ::-1]) for result in results]
    same = [np.array_equal(result, IMAGE) for result in results]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 70 <= sum(mirrored) <= 130  # The bounds are four standard deviations away.


@pytest.mark.parametrize("seed", [(1, 2), (3, 4), (5, 6)])
@pytest.mark.parametrize("change", ["translation", "rotation", "scale", "all"])
def test_equals_an_affine_transform_of_scipy(seed, change):
    ranges = {"translation": 0.3, "rotation": 25.0, "scale": 0.4}
    config = Augment(**(ranges if change == "all" else {change: ranges[change]}), fill="black", flip=change == "all")
    angle, zoom, mirror, right, down = draws(seed)
    angle = np.deg2rad(angle * config.rotation)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) / (1 + zoom * config.scale)
    if config.flip and mirror > 0:
        turn[:, 1] *= -1
    centre = (np.array(IMAGE.shape[:2]) - 1) / 2
    shift = np.array([down * IMAGE.shape[0], right * IMAGE.shape[1]]) * config.translation
    if change == "translation":
        shift = np.round(shift)  # Nothing is blurred.
    expected = [
        scipy.ndimage.affine_transform(
            IMAGE[..., c].astype("float64"), turn, centre - turn @ centre + shift, order=1, mode="grid-constant"
        )
        for c in range(3)
    ]
    result = move({"image": tf.constant(IMAGE)}, seed, config)["image"]
    assert result.dtype == tf.uint8
    # The tolerance covers rounding to grey levels and float32 coordinates.
    np.testing.assert_allclose(result, np.stack(expected, -1), atol=0.5 + 0.02)


def test_reflection_fills_with_the_image_itself():
    config = Augment(translation=0.5, rotation=90, fill="reflect")
    constant = tf.fill([6, 6, 1], tf.constant(100, tf.uint8))
    np.testing.assert_array_equal(move({"image": constant}, (0, 1), config)["image"], constant)
    black = move({"image": constant}, (0, 1), Augment(translation=0.5, fill="black"))
    assert black["image"].numpy().min() == 0
