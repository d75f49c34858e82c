"""RandAugment and AutoAugment draw the right operations, at the right frequency, with the right arguments."""

import numpy as np
import pytest
import tensorflow as tf

from tests.training.data.augment.pillow_operations import OPERATIONS as PILLOW
from training.data.augment import policies

IMAGE = np.random.default_rng(0).integers(0, 256, (13, 17, 3)).astype("uint8")
GEOMETRY = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
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
    ],
)
def test_levels(name, level, expected):
    assert policies.argument(name, level) == pytest.approx(expected, rel=1e-12)


def test_geometry_alone_goes_both_ways():
    assert {name for name, operation in policies.OPERATIONS.items() if operation.is_signed} == set(GEOMETRY)


def _outcomes(name, level):
    """All possible results of an operation in Pillow, if it does not depend on a random position."""
    value = policies.argument(name, level)
    arguments = [()] if name in ("AutoContrast", "Equalize", "Invert") else [(value,)]
    if name in GEOMETRY:
        arguments.append((-value,))
    if name in ("Posterize", "Solarize", "SolarizeAdd"):
        arguments = [(int(value),)]
    return [PILLOW[name](IMAGE, *one) for one in arguments]


def _matches(result, outcome, name):
    # The reasons for these tolerances are in operations_test.py.
    is_different = np.abs(result.astype(int) - outcome) > (name == "AutoContrast")
    return is_different.mean() <= (0.05 if name in GEOMETRY else 0)


def _augmented(function, number):
    """Augments the image with `number` seeds in a pipeline. The eager results are the same."""
    seeds = tf.stack([tf.fill([number], 7), tf.range(number)], axis=1)
    dataset = tf.data.Dataset.from_tensor_slices(seeds).map(lambda seed: function(tf.constant(IMAGE), seed))
    [results] = dataset.batch(number).as_numpy_iterator()
    eager = [function(tf.constant(IMAGE), (7, i)) for i in range(30)]
    np.testing.assert_array_equal(results[:30], eager)
    assert len({result.tobytes() for result in results[:30]}) > 10
    return results


@pytest.mark.slow
def test_randaugment_draws_every_operation_equally_often():
    results = _augmented(lambda image, seed: policies.randaugment(image, seed, 1, 9), 800)
    outcomes = {name: _outcomes(name, 9) for name in PILLOW if name != "Cutout"}
    counts = dict.fromkeys(PILLOW, 0)
    ways = dict.fromkeys(GEOMETRY, 0)
    for result in results:
        for name in outcomes:
            found = [_matches(result, outcome, name) for outcome in outcomes[name]]
            if any(found):
                counts[name] += 1
                ways[name] = ways.get(name, 0) + found[0]
                break
        else:
            counts["Cutout"] += _is_cut_out(result)
    assert sum(counts.values()) == 800
    # 50 of each operation are expected. The bounds are about five standard deviations away.
    assert all(16 <= count <= 84 for count in counts.values()), counts
    # Both signs are equally likely. 19 is four standard deviations for a count of 84.
    assert all(abs(ways[name] - counts[name] / 2) <= 19 for name in GEOMETRY), (counts, ways)


def _is_cut_out(result):
    half = round(9 / 10 * 40 / 224 * 13)
    candidates = (
        PILLOW["Cutout"](IMAGE, 9 / 10 * 40 / 224, ((row + 0.5) / 13, (column + 0.5) / 17))
        for row in range(13)
        for column in range(17)
    )
    return half > 0 and any(np.array_equal(result, candidate) for candidate in candidates)


def test_operations_follow_one_another():
    seed = (5, 11)
    draws = tf.random.stateless_uniform([3, 4], seed)
    expected = tf.constant(IMAGE)
    for one in draws:
        name = list(policies.OPERATIONS)[int(one[0] * 16)]
        expected = policies.apply(expected, tf.cast(one[0] * 16, tf.int32), policies.argument(name, 7), one[1:])
    np.testing.assert_array_equal(policies.randaugment(tf.constant(IMAGE), seed, 3, 7), expected)


@pytest.mark.slow
def test_autoaugment_applies_its_policies_with_their_probabilities():
    """The first operation of each sub-policy, or none, is applied as often as the table requires."""
    number = 1500
    results = _augmented(policies.autoaugment, number)
    is_same = np.array([np.array_equal(result, IMAGE) for result in results])
    untouched = np.mean(
        [
            np.prod([1 - probability * _changes(name, level) for name, probability, level in steps])
            for steps in policies.AUTOAUGMENT
        ]
    )
    assert abs(is_same.mean() - untouched) <= 4 * np.sqrt(untouched * (1 - untouched) / number)
    # Rotate is always applied, and is the only change in sub-policy 16 if TranslateY is not applied.
    rotated = sum(any(_matches(result, outcome, "Rotate") for outcome in _outcomes("Rotate", 7)) for result in results)
    expected = number / 25 * 0.2
    assert 0 < rotated <= expected + 5 * np.sqrt(expected)


def _changes(name, level):
    return not any(np.array_equal(outcome, IMAGE) for outcome in _outcomes(name, level))


def test_one_more_than_the_last_operation_is_none():
    result = policies.apply(tf.constant(IMAGE), tf.constant(len(policies.OPERATIONS)), 1.0, tf.zeros([3]))
    np.testing.assert_array_equal(result, IMAGE)
