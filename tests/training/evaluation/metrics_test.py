"""Metrics of predictions equal scikit-learn and transcriptions of papers."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, top_k_accuracy_score

from training.evaluation.metrics import calibration, class_scores, top_k_is_right, wilson_interval


def test_interval_is_wilsons():
    for right, total, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson_interval(right, total) == pytest.approx((low, high), abs=5e-5)
        assert wilson_interval(total - right, total) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_top_k_is_scikit_learns():
    for k in (1, 3, 5, 6):
        rng = np.random.default_rng(k)
        labels, probabilities = rng.integers(0, 7, 53), rng.dirichlet(np.ones(7), 53)
        found = top_k_is_right(np.eye(7, dtype=bool)[labels], probabilities, k)
        assert found.mean() == pytest.approx(top_k_accuracy_score(labels, probabilities, k=k, labels=range(7)))


def test_one_of_several_right_classes_among_the_first_is_enough():
    probabilities = np.array([[0.4, 0.3, 0.2, 0.1]])
    for right, expected in {(0, 3): True, (1,): True, (2, 3): False}.items():
        labels = np.isin(np.arange(4), right)[None]
        np.testing.assert_array_equal(top_k_is_right(labels, probabilities, 2), [expected])


def test_calibration_error_is_that_of_its_equations():
    rng = np.random.default_rng(0)
    confidence = np.concatenate([rng.uniform(0, 1, 400), np.arange(1, 16) / 15])  # Includes the upper ends of all bins.
    is_right = rng.uniform(0, 1, 415) < confidence**2
    error = 0.0
    for m in range(1, 16):  # Guo et al., arXiv 1706.04599, section 2 and equation 3.
        in_bin = (confidence > (m - 1) / 15) & (confidence <= m / 15)
        error += in_bin.sum() / 415 * abs(is_right[in_bin].mean() - confidence[in_bin].mean())
    found = calibration(confidence, is_right)
    assert found.expected_error == pytest.approx(error, abs=1e-12)
    assert error > 0.1
    assert found.counts.sum() == 415


def test_calibration_by_hand():
    found = calibration(np.array([0.3, 0.5, 0.9, 1.0, 1.0]), np.array([1, 0, 1, 1, 0], bool), num_bins=4)
    np.testing.assert_array_equal(found.counts, [0, 2, 0, 3])
    np.testing.assert_allclose(found.confidence, [0, 0.4, 0, 2.9 / 3])
    np.testing.assert_allclose(found.accuracy, [0, 0.5, 0, 2 / 3])
    assert found.expected_error == pytest.approx((2 * 0.1 + 3 * 0.3) / 5)


def test_scores_of_classes_are_those_of_the_confusion_matrix():
    rng = np.random.default_rng(1)
    labels, predictions = rng.integers(0, 5, 80), rng.integers(0, 5, 80)
    counts = confusion_matrix(labels, predictions)
    scores = class_scores(np.eye(5, dtype=bool)[labels], predictions, "abcde")
    assert sorted(score.name for score in scores) == list("abcde")
    assert [score.accuracy for score in scores] == sorted(score.accuracy for score in scores)
    for score in scores:
        row = counts["abcde".index(score.name)].copy()
        assert (score.images, score.right) == (row.sum(), row["abcde".index(score.name)])
        row["abcde".index(score.name)] = 0
        assert (score.taken_for, score.times) == ("abcde"[row.argmax()], row.max())


def test_an_image_with_several_right_classes_counts_for_each():
    labels = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0]], bool)
    found = {score.name: score for score in class_scores(labels, np.array([1, 2, 0]), "abcd")}
    assert {name: (score.images, score.right) for name, score in found.items()} == {
        "a": (2, 1),
        "b": (2, 1),
        "c": (1, 0),
        "d": (0, 0),
    }
    assert (found["a"].taken_for, found["b"].taken_for, found["c"].taken_for) == ("c", "a", "a")
    assert found["d"].accuracy is None
    assert list(found) == ["c", "a", "b", "d"]


def test_without_mistakes_nothing_is_taken_for_anything():
    scores = class_scores(np.eye(3, dtype=bool), np.arange(3), "abc")
    assert [(score.accuracy, score.taken_for, score.times) for score in scores] == [(1.0, "", 0)] * 3
