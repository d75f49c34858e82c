"""RandAugment and AutoAugment draw the right operations, at the right frequency, with the right arguments."""

import numpy as np
import pytest
import tensorflow as tf

from tests.training.data.augment.pillow_operations import OPERATIONS as PILLOW
from training.data.augment import policies

IMAGE = np.random.default_rng(0).integers(0, 256, (13, 17, 3)).astype("uint8")
GEOMETRY = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


def test_levels():
    for name, level, expected in (
        ("Rotate", 10, 30.0),
        ("Posterize", 10, 4),
        ("Posterize", 2, 1),
        ("Posterize", 6, 2),
        ("Posterize", 30, 8),
        ("Solarize", 10, 256),
        ("Solarize", 3, 76),
        ("Solarize", 15, 256),
        ("SolarizeAdd", 10, 110),
        ("SolarizeAdd", 7, 77),
        ("SolarizeAdd", 30, 255),
        *((name, 10, 1.9) for name in ("Color", "Contrast", "Brightness", "Sharpness")),
        *((name, 0, 0.1) for name in ("Color", "Contrast", "Brightness", "Sharpness")),
        ("ShearX", 10, 0.3),
        ("ShearY", 4, 0.12),
        ("TranslateX", 10, 100 / 224),
        ("TranslateY", 9, 90 / 224),
        ("Cutout", 10, 40 / 224),
        ("AutoContrast", 10, 0.0),
        ("Equalize", 10, 0.0),
        ("Invert", 10, 0.0),
    ):
        assert policies.argument(name, level) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("draw", "sign"), [(0.2, -1), (0.7, 1)])
def test_operations_are_pillows(draw, sign):
    """The first random number determines the sign of the geometric operations alone."""
    for index, name in enumerate(policies.OPERATIONS):
        value = policies.argument(name, 9)
        arguments = (int(value) if name in ("Posterize", "Solarize", "SolarizeAdd") else value,)
        if name in ("AutoContrast", "Equalize", "Invert"):
            arguments = ()
        if name == "Cutout":
            arguments = (value, (0.3, 0.6))
        if name in GEOMETRY:
            arguments = (sign * value,)
        result = policies.apply(tf.constant(IMAGE), tf.constant(index), value, tf.constant([draw, 0.3, 0.6])).numpy()
        # The reasons for these tolerances are in operations_test.py.
        is_different = np.abs(result.astype(int) - PILLOW[name](IMAGE, *arguments)) > (name == "AutoContrast")
        assert is_different.mean() <= (0.05 if name in GEOMETRY else 0), name


def test_autoaugment_applies_two_steps_with_their_probabilities():
    results = set()
    for i in range(30):
        draws = tf.random.stateless_uniform([9], (7, i)).numpy()
        expected = tf.constant(IMAGE)
        steps = policies.AUTOAUGMENT[int(draws[0] * 25)]
        for (name, probability, level), (drawn, *rest) in zip(steps, draws[1:].reshape(2, 4), strict=True):
            if drawn < probability:
                index = tf.constant(list(policies.OPERATIONS).index(name))
                expected = policies.apply(expected, index, policies.argument(name, level), rest)
        result = policies.autoaugment(tf.constant(IMAGE), (7, i)).numpy()
        np.testing.assert_array_equal(result, expected)
        results.add(result.tobytes())
    assert len(results) > 15


def test_operations_follow_one_another():
    seed = (5, 11)
    draws = tf.random.stateless_uniform([3, 4], seed)
    expected = tf.constant(IMAGE)
    for one in draws:
        name = list(policies.OPERATIONS)[int(one[0] * 16)]
        expected = policies.apply(expected, tf.cast(one[0] * 16, tf.int32), policies.argument(name, 7), one[1:])
    np.testing.assert_array_equal(policies.randaugment(tf.constant(IMAGE), seed, 3, 7), expected)


def test_one_more_than_the_last_operation_is_none():
    result = policies.apply(tf.constant(IMAGE), tf.constant(len(policies.OPERATIONS)), 1.0, tf.zeros([3]))
    np.testing.assert_array_equal(result, IMAGE)
