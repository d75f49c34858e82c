"""Errors of depth equal a transcription of the published evaluations."""

import numpy as np
import pytest

from tests.training.evaluation.samples import evaluate_samples
from training.errors import InputError
from training.evaluation.depth import ERRORS, BestConstant, evaluate
from training.reports.text import depth_text

LOW, HIGH = LIMITS = (0.5, 10.0)


def random_depths():
    """True and predicted depth (11, 7, 9), also outside the limits. Predictions have another scale in each image."""
    rng = np.random.default_rng(0)
    true = np.exp(rng.uniform(-1, 2.7, (11, 7, 9)))
    predicted = true * np.exp(rng.normal(0, 0.2, true.shape) + rng.normal(0, 0.3, (11, 1, 1)))
    true[rng.random(true.shape) < 0.2] = 0
    true[3] = 0  # Nothing is known about this image.
    return true.astype("float32"), predicted.astype("float32")


def evaluation_of(true, predicted, **options):
    """Evaluates a model that returns its images, which are the predictions."""
    columns = {"image": predicted[..., None], "depth": true[..., None]}
    return evaluate_samples(evaluate, columns, lambda images: images + 0.0, (), LIMITS, **options)


def transcribed(true, predicted, align):
    """The `ERRORS` of the images, (10, 6), each aligned by `align(p, d)`, and the relative errors of all pixels."""
    rows, relative = [], []
    for d, p in zip(true.astype("float64"), predicted.astype("float64"), strict=True):
        if (valid := (d > LOW) & (d < HIGH)).any():
            d, p = d[valid], align(p[valid], d[valid])
            p[p < LOW], p[p > HIGH] = LIMITS
            relative += ((p - d) / d).tolist()
            worse = np.maximum(p / d, d / p)
            row = [np.mean(abs(p - d) / d), np.mean((p - d) ** 2) ** 0.5, np.mean(abs(np.log10(p) - np.log10(d)))]
            rows.append(row + [np.mean(worse < 1.25**power) for power in (1, 2, 3)])
    return np.array(rows), np.array(relative)


def by_least_squares(p, d):
    """Depth from relative inverse depth (MiDaS, arXiv 1907.01341)."""
    (scale, shift), *_ = np.linalg.lstsq(np.stack([p, np.ones_like(p)], axis=1), 1 / d, rcond=None)
    return 1 / np.maximum(scale * p + shift, 1 / HIGH)


def test_metric_depth():
    true, predicted = random_depths()
    evaluation = evaluation_of(true, predicted)
    plain, relative = transcribed(true, predicted, lambda p, d: p)
    aligned, _ = transcribed(true, predicted, lambda p, d: p * np.median(d) / np.median(p))
    for name, rows in (("as predicted", plain), ("aligned", aligned)):
        np.testing.assert_allclose(list(evaluation.means[name].values()), rows.mean(axis=0), rtol=1e-5)
    counts = [((relative >= low) & (relative < low + 0.025)).sum() for low in np.linspace(-1, 0.975, 80)]
    np.testing.assert_array_equal(evaluation.histogram, [*counts[:-1], counts[-1] + (relative >= 1).sum()])
    kept = np.delete(np.arange(11), 3)
    assert list(evaluation.worst) == kept[np.argsort(-plain[:, 0])[:6]].tolist()
    index, (error, image, shown, clipped) = next(iter(evaluation.worst.items()))
    assert error == pytest.approx(plain[:, 0].max(), rel=1e-5)
    np.testing.assert_array_equal(image[..., 0], predicted[index])
    np.testing.assert_array_equal(shown, np.where((true[index] > LOW) & (true[index] < HIGH), true[index], 0))
    np.testing.assert_array_equal(clipped, np.clip(image[..., 0], *LIMITS))
    with pytest.raises(InputError, match=r"No depth is between 0.5 and 10 m. Correct"):
        evaluation_of(1000 * true, predicted)


def test_relative_depth():
    true, predicted = random_depths()
    inverse = 3 / predicted - 5
    evaluation = evaluation_of(true, inverse, is_relative=True)
    expected = transcribed(true, inverse, by_least_squares)[0].mean(axis=0)
    np.testing.assert_allclose(list(evaluation.means["aligned"].values()), expected, rtol=1e-5)
    results = f"AbsRel {expected[0]:.2%}, RMSE {expected[1]:.4g} m, δ1 {expected[3]:.2%}"
    assert str(evaluation) == f"{results}, aligned (10 images)"
    lines = depth_text(evaluation).splitlines()
    assert lines[2].split() == ["depth", *ERRORS]
    assert lines[3].split()[:4] == ["aligned", f"{expected[0]:.2%}", f"{expected[1]:.4g}", "m"]
    assert lines[4].startswith(f"best constant, {evaluation.constant[0]:.4g} m")
    constant = evaluation_of(true, 0 * inverse, is_relative=True).main[1]  # Has no scale.
    assert constant["RMSE"] == pytest.approx(transcribed(true, 0 * inverse, by_least_squares)[0][:, 1].mean())


@pytest.mark.parametrize("repeated", [0, 0.4])
def test_best_constant_is_the_weighted_median(repeated):
    """Also if the depth of many pixels is the same."""
    rng, baseline, depths, weights = np.random.default_rng(0), BestConstant(LIMITS), [], []
    for count in (500, 300, 1000):
        depths.append(np.where(rng.random(count) < repeated, 2.345, 0.3 + rng.uniform(*LIMITS, count) ** 0.7))
        weights.append(np.full(count, 1 / count / 3))
        baseline.add(depths[-1])
    d, w = np.sort(np.concatenate(depths)), np.concatenate(weights)[np.argsort(np.concatenate(depths))]
    median = d[np.searchsorted(np.cumsum(w / d), (w / d).sum() / 2)]
    error = pytest.approx((w * abs(median - d) / d).sum(), abs=1e-5)
    assert baseline.result() == (pytest.approx(median, rel=2e-3), error)
