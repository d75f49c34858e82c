"""Each change of an image, alone, against what it is meant to do."""

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf

from training.augment import augment
from training.config import Augment

IMAGE = np.random.default_rng(0).uniform(0, 255, (7, 9, 3)).astype("float32")


def draws(seed):
    """The five numbers from -1 to 1 that decide the change: angle, size, mirror, shift right, shift down."""
    return tf.random.stateless_uniform([5], seed, -1.0, 1.0).numpy()


def test_no_change_is_the_identity():
    np.testing.assert_array_equal(augment(IMAGE.astype("uint8"), (0, 1), Augment()), IMAGE.astype("uint8"))


def test_flip_mirrors_half_of_the_images():
    results = [augment(IMAGE, (0, i), Augment(flip=True)).numpy() for i in range(200)]
    mirrored = [np.allclose(result, IMAGE[:, ::-1], atol=1e-3) for result in results]
    same = [np.allclose(result, IMAGE, atol=1e-3) for result in results]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 70 <= sum(mirrored) <= 130  # Four standard deviations.


@pytest.mark.parametrize("seed", [(1, 2), (3, 4), (5, 6)])
@pytest.mark.parametrize("change", ["translation", "rotation", "scale", "all"])
def test_equals_an_affine_transform_of_scipy(seed, change):
    ranges = {"translation": 0.3, "rotation": 25.0, "scale": 0.4}
    config = Augment(**(ranges if change == "all" else {change: ranges[change]}), fill="black")
    angle, zoom, _, right, down = draws(seed)
    angle = np.deg2rad(angle * config.rotation)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) / (1 + zoom * config.scale)
    centre = (np.array(IMAGE.shape[:2]) - 1) / 2
    shift = np.array([down * IMAGE.shape[0], right * IMAGE.shape[1]]) * config.translation
    expected = [
        scipy.ndimage.affine_transform(
            IMAGE[..., c].astype("float64"), turn, centre - turn @ centre + shift, order=1, mode="grid-constant"
        )
        for c in range(3)
    ]
    # 255 grey levels in float32, through coordinates of float32.
    np.testing.assert_allclose(augment(IMAGE, seed, config), np.stack(expected, -1), atol=0.02)


def test_reflection_fills_with_the_image_itself():
    config = Augment(translation=0.5, rotation=90, fill="reflect")
    constant = np.full((6, 6, 1), 100, "uint8")
    np.testing.assert_allclose(augment(constant, (0, 1), config), constant, atol=1e-3)
    assert augment(constant, (0, 1), Augment(translation=0.5, fill="black")).numpy().min() == 0
