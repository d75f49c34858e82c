"""Every operation equals Pillow's."""

import numpy as np
import pytest
import tensorflow as tf

from tests.test_case import slow_except
from tests.training.data.augment.pillow_operations import OPERATIONS
from training.data.augment import operations

_ARGUMENTS = {
    "AutoContrast": [()],
    "Equalize": [()],
    "Invert": [()],
    "Rotate": [(0.0,), (30.0,), (-17.5,), (63.0,)],
    "Posterize": [(bits,) for bits in range(1, 9)],
    "Solarize": [(0,), (77,), (128,), (256,)],
    "Color": [(0.0,), (0.1,), (1.0,), (1.9,), (5.5,)],
    "Contrast": [(0.0,), (0.1,), (1.0,), (1.9,), (5.5,)],
    "Brightness": [(0.0,), (0.1,), (1.0,), (1.9,), (5.5,)],
    "Sharpness": [(0.0,), (0.1,), (1.0,), (1.9,), (5.5,)],
    "ShearX": [(0.3,), (-0.21,)],
    "ShearY": [(0.3,), (-0.21,)],
    "TranslateX": [(0.0,), (0.2,), (-0.45,), (1.3,)],
    "TranslateY": [(0.0,), (0.2,), (-0.45,), (1.3,)],
    "Cutout": [(0.18, (0.4, 0.7)), (0.18, (0.0, 0.99)), (0.0, (0.5, 0.5)), (2.0, (0.3, 0.3))],
    "SolarizeAdd": [(0,), (110,), (255,)],
}
_CASES = [(name, arguments) for name, cases in _ARGUMENTS.items() for arguments in cases]
# Some source coordinates lie halfway between two pixels. float32 and Pillow's float64 round them differently.
# Pillow's stretch in float64 sometimes falls just below an integer that it should reach.
_PARTS_THAT_MAY_DIFFER = {"Rotate": 0.01, "ShearX": 0.01, "ShearY": 0.01}
_TOLERANCES = {"AutoContrast": 1}


def _function(name):
    return getattr(operations, "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:])


def _images(channels):
    """Noise, a picture with few adjacent values, one with low contrast and few values, and a plain one."""
    rng = np.random.default_rng(channels)
    rows, columns = np.mgrid[:24, :33]
    smooth = np.stack([rows * 5 + 40, columns * 3 + 90, rows * columns / 9 + 60][:channels], axis=-1)
    return [
        rng.integers(0, 256, (23, 31, channels)).astype("uint8"),
        (smooth + rng.normal(0, 3, smooth.shape)).round().astype("uint8"),
        rng.choice([100, 101, 103, 180], (31, 18, channels)).astype("uint8"),
        np.full((9, 7, channels), 77, "uint8"),
    ]


def _assert_same(name, result, expected):
    assert result.dtype == "uint8"
    is_different = np.abs(result.astype(int) - expected) > _TOLERANCES.get(name, 0)
    assert is_different.mean() <= _PARTS_THAT_MAY_DIFFER.get(name, 0), np.argwhere(is_different)[:5]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("name", "arguments"), _CASES)
def test_equals_pillow(name, arguments, channels):
    for image in _images(channels):
        result = _function(name)(tf.constant(image), *arguments).numpy()
        _assert_same(name, result, OPERATIONS[name](image, *arguments))


@pytest.mark.parametrize("name", slow_except(["Invert", "Brightness"], list(OPERATIONS)))
def test_equals_pillow_in_a_pipeline_of_images_of_their_own(name):
    """Within tf.data, the arguments are tensors that differ from image to image."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 23, 31, 3)).astype("uint8")
    cases = [_ARGUMENTS[name][i % len(_ARGUMENTS[name])] for i in range(6)]
    columns = [np.array(column, "float32") for column in zip(*cases, strict=True)]
    results = tf.data.Dataset.from_tensor_slices((images, *columns)).map(_function(name)).batch(6)
    [results] = results.as_numpy_iterator()
    assert results.shape == images.shape
    for result, image, arguments in zip(results, images, cases, strict=True):
        _assert_same(name, result, OPERATIONS[name](image, *arguments))


def test_autocontrast_reaches_black_and_white():
    image = np.random.default_rng(0).integers(13, 220, (23, 31, 3)).astype("uint8")
    result = operations.auto_contrast(tf.constant(image)).numpy()
    np.testing.assert_array_equal(result.min(axis=(0, 1)), 0)
    np.testing.assert_array_equal(result.max(axis=(0, 1)), 255)


def test_tiny_images_are_left_unsharpened():
    image = np.random.default_rng(0).integers(0, 256, (2, 5, 3)).astype("uint8")
    np.testing.assert_array_equal(operations.sharpness(tf.constant(image), 1.9), image)
    np.testing.assert_array_equal(OPERATIONS["Sharpness"](image, 1.9), image)
