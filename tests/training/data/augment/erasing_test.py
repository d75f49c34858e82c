import numpy as np
import tensorflow as tf

from training.data.augment.erasing import AREAS, ASPECT_RATIOS, erase


def _erased(image, probability, number):
    seeds = tf.stack([tf.fill([number], 3), tf.range(number)], axis=1)
    dataset = tf.data.Dataset.from_tensor_slices(seeds).map(lambda seed: erase(tf.constant(image), seed, probability))
    [results] = dataset.batch(number).as_numpy_iterator()
    return results


def test_erases_rectangles():
    image = np.full((61, 97, 1), 255, "uint8")  # White noise is so rare that every corner is visible.
    number = 300
    results = _erased(image, 0.4, number)
    is_erased = (results != 255).any(axis=(1, 2, 3))
    assert abs(is_erased.sum() - 120) <= 4 * np.sqrt(number * 0.4 * 0.6)
    areas, ratios, centres = [], [], []
    for result in results[is_erased]:
        rows, columns = np.nonzero((result != 255).any(axis=-1))
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        inside = result[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert (inside != 255).mean() > 0.9  # The whole rectangle is erased.
        areas.append(height * width / (61 * 97))
        ratios.append(height / width)
        centres.append(((rows.min() + rows.max()) / 120, (columns.min() + columns.max()) / 192))
    # The sides are rounded to pixels, hence the margins.
    assert AREAS[0] * 0.85 <= min(areas) < 0.06
    assert 0.28 < max(areas) <= AREAS[1] * 1.05
    assert ASPECT_RATIOS[0] * 0.9 <= min(ratios) < 0.5
    assert 2 < max(ratios) <= ASPECT_RATIOS[1] * 1.1
    np.testing.assert_allclose(np.mean(centres, axis=0), 0.5, atol=0.08)
    assert np.min(centres) < 0.15
    assert np.max(centres) > 0.85


def test_nothing_is_erased_without_a_probability_or_a_rectangle_that_fits():
    for side, probability in ((31, 0.0), (1, 1.0)):
        image = tf.fill((side, side, 3), tf.constant(9, tf.uint8))
        np.testing.assert_array_equal(erase(image, (1, 2), probability), image)


def test_noise_is_that_of_normalised_pixels():
    results = _erased(np.full((61, 97, 3), 255, "uint8"), 1.0, 60)
    # White noise looks like the image, so white is excluded from both samples.
    noise = results[(results != 255).all(axis=-1)].astype(float)
    means, deviations = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])  # ImageNet's statistics.
    expected = np.random.default_rng(0).normal(255 * means, 255 * deviations, noise.shape).round().clip(0, 255)
    expected = expected[(expected != 255).all(axis=-1)]
    # The tolerance is five standard deviations of a difference of means. For standard deviations it is even wider.
    tolerance = 5 * 58 * np.sqrt(2 / len(expected))
    np.testing.assert_allclose(noise.mean(axis=0), expected.mean(axis=0), atol=tolerance)
    np.testing.assert_allclose(noise.std(axis=0), expected.std(axis=0), atol=tolerance)
    neighbours = np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]
    assert abs(neighbours) < 0.1
