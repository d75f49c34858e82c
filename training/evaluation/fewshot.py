"""Few-shot and nearest-neighbour accuracy of frozen features. Shapes: N images, D features, C classes."""

import numpy as np

SHOTS = (1, 5, 10, 25)
L2 = 2.0**10
MOST_COSINES = 2**26
"""Maximum number of cosines computed at a time. With the indices from argpartition, they take 0.8 GB."""
_BIAS = 100.0  # Value of the constant feature. It is so large that the penalty hardly affects this feature's weights.


def fewshot_accuracy(train_features, train_labels, test_features, test_labels, shots=SHOTS, seeds=(0, 1, 2), l2=L2):
    """Accuracy of a linear classifier, fitted in closed form to a few images of each class.

    The classifier is a ridge regression from the features to -1 and 1, as in section 4.1 of arXiv 2010.11929 and in
    big_vision's `evaluators/fewshot_lsr.py`.

    Args:
        train_features: Features of the images to choose from, (N, D).
        train_labels: Class of each image, integers (N,).
        test_features: (M, D)
        test_labels: Class of each image, integers (M,).
        shots: Numbers of training images per class. If a class has fewer images, all of them are used.
        seeds: Seeds of the random choice. With the same seed, a larger number of shots keeps the images of a
            smaller number and adds others.
        l2: Strength of the penalty, above 0.

    Returns:
        {shots: accuracy of each seed, from 0 to 1, float64 (number of seeds,)}
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
    """Indices of `shots` random images of each class, chosen by `seed`. If a class has fewer images, all are chosen."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # Sorted by class, in random order within each class.
    _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    rank = np.arange(len(labels)) - np.repeat(first, sizes)
    return order[rank < shots]


def fit_ridge(features, targets, l2):
    """Ridge regression from standardised features with an additional constant feature.

    The weights are W = (XᵀX + l2 I)⁻¹ Xᵀ Y. If there are fewer images than features, the equivalent
    Xᵀ (XXᵀ + l2 I)⁻¹ Y is computed instead, because its linear system is smaller.

    Args:
        features: (N, D)
        targets: (N, C)
        l2: Strength of the penalty, above 0.

    Returns:
        Function from features (M, D) to predictions, float64 (M, C).
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
    """Accuracy of a weighted nearest-neighbour classifier.

    The `neighbours` training images with the largest cosine similarities vote for their classes. A vote with similarity
    s has the weight exp(s / temperature) (arXiv 1805.01978, section 3.4). The defaults are from DINO, arXiv 2104.14294.

    Args:
        train_features: (N, D)
        train_labels: Class of each image, integers (N,).
        test_features: (M, D)
        test_labels: Class of each image, integers (M,).
        neighbours: Number of neighbours that vote, from 1 to N.
        temperature: Divisor of the cosines, above 0. A lower value gives the nearest images more weight.

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
        # Subtracting 1 prevents overflow, and scales all votes of an image by the same factor.
        weights = np.exp((np.take_along_axis(cosines, nearest, axis=1) - 1) / temperature)
        votes = np.zeros((len(cosines), num_classes))
        np.add.at(votes, (np.arange(len(cosines))[:, None], train_labels[nearest]), weights)
        right += int((votes.argmax(axis=1) == test_labels[rows]).sum())
    return right / len(unknown)


def _unit(features):
    """Scales each feature vector to length 1."""
    features = np.asarray(features, "float32")
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
