"""Classifiers on frozen features equal NumPy, scikit-learn and TensorFlow's least squares."""

import numpy as np
import pytest
import sklearn.linear_model
import sklearn.neighbors

from training.evaluation import fewshot
from training.evaluation.fewshot import choose_shots, fewshot_accuracy, fit_ridge, neighbour_accuracy


def clouds(num_images, num_features, num_classes=7, seed=0, noise=1.0):
    """Random features around one mean per class, and their labels."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(0, 1, (num_classes, num_features))
    labels = rng.integers(0, num_classes, num_images)
    features = means[labels] + rng.normal(0, noise, (num_images, num_features))
    return (features * np.linspace(0.1, 30, num_features) + 5).astype("float32"), labels


def transcribed(features, targets, test_features, l2):
    """The primal form only, with an explicit inverse."""
    mean, deviation = features.mean(0), features.std(0) + 1e-5
    x, t = ((part - mean) / deviation for part in (features.astype("float64"), test_features.astype("float64")))
    x, t = (np.concatenate([part, np.full((len(part), 1), 100.0)], axis=1) for part in (x, t))
    return t @ np.linalg.inv(x.T @ x + l2 * np.eye(x.shape[1])) @ x.T @ targets


@pytest.mark.parametrize("num_images", [11, 13, 14, 15, 80])  # N is below, at and above D = 13 + 1.
@pytest.mark.parametrize("l2", [2.0**10, 0.3])
def test_ridge_equals_numpy_and_scikit_learn(num_images, l2):
    features, labels = clouds(num_images, 13)
    test_features, _ = clouds(37, 13, seed=1)
    targets = 2.0 * np.eye(7)[labels] - 1
    found = fit_ridge(features, targets, l2)(test_features)
    np.testing.assert_allclose(found, transcribed(features.astype("float64"), targets, test_features, l2), atol=1e-5)

    scaler = sklearn.preprocessing.StandardScaler().fit(features.astype("float64"))
    scaler.scale_ = features.astype("float64").std(axis=0) + 1e-5
    x, t = (np.pad(scaler.transform(part), ((0, 0), (0, 1)), constant_values=100) for part in (features, test_features))
    ridge = sklearn.linear_model.Ridge(alpha=l2, fit_intercept=False, solver="svd").fit(x, targets)
    np.testing.assert_allclose(found, ridge.predict(t), atol=1e-5)


def test_a_feature_that_never_changes_does_no_harm():
    features, labels = clouds(30, 5)
    features[:, 2] = 7
    assert np.isfinite(fit_ridge(features, np.eye(7)[labels], 1.0)(features)).all()


def test_shots_are_drawn_from_each_class_and_more_hold_fewer():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 3, 4], [9, 2, 30, 5]))
    few, many = choose_shots(labels, 3, seed=4), choose_shots(labels, 6, seed=4)
    assert np.bincount(labels[few], minlength=5).tolist() == [3, 2, 0, 3, 3]
    assert np.bincount(labels[many], minlength=5).tolist() == [6, 2, 0, 6, 5]
    assert len(set(many.tolist())) == len(many)
    assert set(few.tolist()) < set(many.tolist())
    assert set(few.tolist()) != set(choose_shots(labels, 3, seed=5).tolist())
    np.testing.assert_array_equal(few, choose_shots(labels, 3, seed=4))


def test_few_shot_accuracy_is_that_of_the_images_chosen():
    features, labels = clouds(200, 13, noise=2)
    test_features, test_labels = clouds(90, 13, seed=1, noise=2)
    found = fewshot_accuracy(features, labels, test_features, test_labels, shots=(1, 4), seeds=(5, 6), l2=3.0)
    assert list(found) == [1, 4]
    for shots, accuracies in found.items():
        for seed, accuracy in zip((5, 6), accuracies, strict=True):
            chosen = choose_shots(labels, shots, seed)
            targets = 2.0 * np.eye(7)[labels[chosen]] - 1
            scores = transcribed(features[chosen].astype("float64"), targets, test_features, 3.0)
            assert accuracy == pytest.approx((scores.argmax(axis=1) == test_labels).mean())
            assert 0 < accuracy < 1
    assert len({*found[1], *found[4]}) > 2


def test_a_class_without_training_images_is_never_named():
    features, labels = clouds(40, 13, num_classes=3)
    accuracies = fewshot_accuracy(features, labels, features[:5], np.full(5, 3), shots=[2], seeds=[0])
    assert accuracies[2].tolist() == [0]


@pytest.mark.parametrize("neighbours", [1, 20, 200])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_neighbours_vote_as_in_scikit_learn(neighbours, temperature, monkeypatch):
    monkeypatch.setattr(fewshot, "MOST_COSINES", 200 * 64)
    features, labels = clouds(200, 13, noise=2)
    test_features, test_labels = clouds(1100, 13, seed=1, noise=2)  # More images than are compared at a time.
    voting = sklearn.neighbors.KNeighborsClassifier(
        neighbours, metric="cosine", weights=lambda distances: np.exp((1 - distances) / temperature)
    ).fit(features, labels)
    found = neighbour_accuracy(features, labels, test_features, test_labels, neighbours, temperature)
    assert found == pytest.approx(voting.score(test_features, test_labels))
    assert 0.2 < found < 1


def test_sharp_votes_do_not_overflow():
    features, labels = clouds(50, 13)
    assert neighbour_accuracy(features, labels, features, labels, 20, temperature=1e-4) == 1
