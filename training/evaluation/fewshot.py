"""How well classes are told apart by frozen features, without training the model. N images, D features, C classes."""

import numpy as np

SHOTS = (1, 5, 10, 25)
L2 = 2.0**10
MOST_COSINES = 2**26
"""Of test with training images, at a time: with the indices of their order 0.8 GB."""
_BIAS = 100.0  # The constant feature: so large that its weights are almost free of the penalty.


def fewshot_accuracy(train_features, train_labels, test_features, test_labels, shots=SHOTS, seeds=(0, 1, 2), l2=L2):
    """Accuracy of a linear classifier that is fitted, in closed form, to a few images of each class.

    Ridge regression from the features to -1 and 1, as in section 4.1 of arXiv 2010.11929 and in big_vision's
    `evaluators/fewshot_lsr.py`.

    Args:
        train_features: (N, D), of which some are chosen.
        train_labels: The class of each, integers (N,).
        test_features: (M, D)
        test_labels: The class of each, integers (M,).
        shots: How many images of each class are learned from. A class that has fewer gives all.
        seeds: From which the choice follows. With one seed, more shots hold all images of fewer.
        l2: Strength of the penalty, above 0.

    Returns:
        {shots: accuracy from 0 to 1 with each seed, float64 (number of seeds,)}
    """
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    num_classes = 1 + int(max(train_labels.max(), test_labels.max()))
    accuracies = {}
    for count in shots:
        accuracies[count] = np.empty(len(seeds))
        for index, seed in enumerate(seeds):
            chosen = choose_shots(train_labels, count, seed)
            targets = np.where(train_labels[chosen, None] == np.arange(num_classes), 1.0, -1.0)
            score = fit_ridge(train_features[chosen], targets, l2)
            accuracies[count][index] = (score(test_features).argmax(axis=1) == test_labels).mean()
    return accuracies


def choose_shots(labels, shots, seed):
    """Indices of `shots` images of each class, at random but always the same; of all images of a class with fewer."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # Class by class, in each at random.
    _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    rank = np.arange(len(labels)) - np.repeat(first, sizes)
    return order[rank < shots]


def fit_ridge(features, targets, l2):
    """Ridge regression from features that are standardised and given a constant feature.

    With X (N, D) they are W = (XᵀX + l2 I)⁻¹ Xᵀ Y, or, with fewer images than features, the same by the smaller matrix:
    Xᵀ (XXᵀ + l2 I)⁻¹ Y.

    Args:
        features: (N, D)
        targets: (N, C)
        l2: Strength of the penalty, above 0.

    Returns:
        Function from features (M, D) to what is predicted for them, float64 (M, C).
    """
    features = np.asarray(features, "float64")
    mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-5

    def prepare(features):
        return np.pad((features - mean) / scale, ((0, 0), (0, 1)), constant_values=_BIAS)

    x = prepare(features)
    num_images, num_features = x.shape
    if num_images >= num_features:
        weights = np.linalg.solve(x.T @ x + l2 * np.eye(num_features), x.T @ targets)
    else:
        weights = x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(num_images), targets)
    return lambda features: prepare(features) @ weights


def neighbour_accuracy(train_features, train_labels, test_features, test_labels, neighbours=20, temperature=0.07):
    """Accuracy of naming the class of the most similar training images.

    The nearest `neighbours` by the cosine s of their features each vote for their class with the weight
    exp(s / temperature), as in arXiv 1805.01978, section 3.4, and with these defaults in DINO, arXiv 2104.14294.

    Args:
        train_features: (N, D)
        train_labels: The class of each, integers (N,).
        test_features: (M, D)
        test_labels: The class of each, integers (M,).
        neighbours: How many vote, from 1 to N.
        temperature: Above 0; the lower, the more the nearest count.

    Returns:
        The accuracy, from 0 to 1.
    """
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    known, unknown = _unit(train_features), _unit(test_features)
    num_classes = 1 + int(max(train_labels.max(), test_labels.max()))
    right = 0
    num_rows = max(1, MOST_COSINES // len(known))
    for first in range(0, len(unknown), num_rows):
        rows = slice(first, first + num_rows)
        cosines = unknown[rows] @ known.T
        nearest = np.argpartition(cosines, len(known) - neighbours, axis=1)[:, -neighbours:]
        # Below 0, so that no weight overflows; it changes all votes of an image by the same factor.
        weights = np.exp((np.take_along_axis(cosines, nearest, axis=1) - 1) / temperature)
        votes = np.zeros((len(cosines), num_classes))
        np.add.at(votes, (np.arange(len(cosines))[:, None], train_labels[nearest]), weights)
        right += int((votes.argmax(axis=1) == test_labels[rows]).sum())
    return right / len(unknown)


def _unit(features):
    """Features of length 1."""
    features = np.asarray(features, "float32")
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
