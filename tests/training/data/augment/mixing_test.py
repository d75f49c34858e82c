import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from training.data.augment.mixing import beta, mix
from training.recipe.config import Augment

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 11, 14, 3)).astype("uint8")
LABELS = np.eye(6, dtype="float32")[[3, 1, 4, 1, 5]]
SEEDS = [(2, i) for i in range(40)]


def _mix(seed, num_real=5, **config):
    images, labels = mix(tf.constant(IMAGES), tf.constant(LABELS), seed, num_real, Augment(**config))
    assert images.dtype == tf.uint8
    assert labels.dtype == tf.float32
    return images.numpy(), labels.numpy()


def _partners(num_real):
    return np.r_[np.roll(np.arange(num_real), 1), np.arange(num_real, 5)]


@pytest.mark.parametrize("concentration", [0.01, 0.8, 1.0, 5.0])
def test_draws_from_the_beta_distribution(concentration):
    dataset = tf.data.Dataset.range(1500).map(lambda i: beta(concentration, tf.stack([9, i])))
    [draws] = dataset.batch(1500).as_numpy_iterator()
    assert np.isfinite(draws).all()
    # float32 cannot resolve draws that are closer to 0 or 1, so both sides are clipped.
    edges = np.clip(draws, 1e-6, 1 - 1e-6)
    distribution = scipy.stats.beta(concentration, concentration)
    inner = edges[(edges > 1e-6) & (edges < 1 - 1e-6)]
    low, high = distribution.cdf([1e-6, 1 - 1e-6])
    part = high - low
    assert abs(len(inner) - 1500 * part) <= 4 * np.sqrt(1500 * part * (1 - part)) + 1
    if len(inner) > 100:
        ranks = (distribution.cdf(inner) - low) / part
        assert scipy.stats.kstest(ranks, "uniform").pvalue > 1e-3
    assert abs((draws < 0.5).mean() - 0.5) <= 4 * 0.5 / np.sqrt(1500)


@pytest.mark.parametrize("num_real", [5, 3, 1])
@pytest.mark.parametrize("seed", SEEDS[:5])
def test_mixup(seed, num_real):
    images, labels = _mix(seed, num_real, mixup=0.8)
    partners = _partners(num_real)
    # All images share one lambda. It is read off the labels of the first two images, which differ.
    own = labels[0, 3] if num_real > 1 else 1.0
    assert 0.5 <= own <= 1
    np.testing.assert_allclose(labels, own * LABELS + (1 - own) * LABELS[partners], atol=1e-6)
    expected = own * IMAGES.astype(float) + (1 - own) * IMAGES[partners]
    np.testing.assert_allclose(images, expected, atol=0.5 + 1e-4)  # The tolerance covers rounding to grey levels.
    np.testing.assert_array_equal(images[num_real:], IMAGES[num_real:])
    np.testing.assert_array_equal(labels[num_real:], LABELS[num_real:])


@pytest.mark.parametrize("num_real", [5, 3, 1])
@pytest.mark.parametrize("seed", SEEDS[:8])
def test_cutmix(seed, num_real):
    images, labels = _mix(seed, num_real, cutmix=1.0)
    partners = _partners(num_real)
    box = (images != IMAGES).any(axis=(0, 3))
    rows, columns = np.nonzero(box)
    if len(rows):
        assert box[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
    np.testing.assert_array_equal(images, np.where(box[..., None], IMAGES[partners], IMAGES))
    if num_real > 1:
        # Unless it is clipped, the box has the part 1 - lambda of the image. Its sides are rounded to even numbers.
        part = 1 - float(beta(1.0, tf.random.split(seed, 3)[1]))
        for found, side in ((rows, 11), (columns, 14)):
            extent, expected = (np.ptp(found) + 1 if len(found) else 0), 2 * (int(side * np.sqrt(part)) // 2)
            is_clipped = len(found) and (found.min() == 0 or found.max() == side - 1)
            assert expected / 2 <= extent <= expected if is_clipped else extent == expected
    own = 1 - box.mean() if num_real > 1 else 1.0  # The labels use the exact area of the clipped box.
    np.testing.assert_allclose(labels, own * LABELS + (1 - own) * LABELS[partners], atol=1e-6)


def test_both_take_turns():
    is_mixup = []
    for seed in SEEDS:
        images, labels = _mix(seed, mixup=0.8, cutmix=1.0)
        np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
        changed = (images != IMAGES).any(axis=(0, 3))
        is_from_partner = images == IMAGES[_partners(5)]
        is_mixup.append(not is_from_partner[:, changed].all())
    assert 7 <= sum(is_mixup) <= 33  # The bounds are four standard deviations away.


@pytest.mark.slow
def test_a_function_of_the_seed_also_in_a_pipeline():
    config = {"mixup": 0.2, "cutmix": 1.0}

    def batch(seed):
        return mix(tf.constant(IMAGES), tf.constant(LABELS), seed, 4, Augment(**config))

    piped = list(tf.data.Dataset.from_tensor_slices(SEEDS[:6]).map(batch).as_numpy_iterator())
    for seed, (images, labels) in zip(SEEDS, piped, strict=False):
        eager_images, eager_labels = _mix(seed, 4, **config)
        np.testing.assert_array_equal(images, eager_images)
        np.testing.assert_array_equal(labels, eager_labels)
    assert len({labels.tobytes() for _, labels in piped}) > 3


def test_padding_alone_and_nothing_asked_for_change_nothing():
    for options in ({"num_real": 0, "mixup": 0.8}, {}):
        images, labels = _mix((1, 2), **options)
        np.testing.assert_array_equal(images, IMAGES)
        np.testing.assert_array_equal(labels, LABELS)
