"""What is told of predictions, in NumPy alone. N images, C classes."""

import dataclasses
import math

import numpy as np

NUM_BINS = 15


def wilson_interval(right, total, z=1.959964):
    """Wilson's score interval, (low, high), of an accuracy of `right` of `total` images; 95 % unless `z` is given."""
    accuracy, penalty = right / total, z * z / total
    centre = (accuracy + penalty / 2) / (1 + penalty)
    half = math.sqrt(penalty * accuracy * (1 - accuracy) + penalty * penalty / 4) / (1 + penalty)
    return max(0.0, centre - half), min(1.0, centre + half)


def top_k_is_right(labels, probabilities, k):
    """Whether a right class is among the `k` most probable ones of each image: bool (N,).

    Args:
        labels: bool (N, C), true for each right class.
        probabilities: (N, C)
        k: Less than C.
    """
    top = np.argpartition(probabilities, -k, axis=1)[:, -k:]
    return np.take_along_axis(labels, top, axis=1).any(axis=1)


def binary_cross_entropy(labels, probabilities):
    """Cross-entropy of a probability for each class on its own, summed over the classes, in nats: (N,).

    A probability in float32 that should be 0 and is 1 counts as the largest below 1, for 16.6 nats.

    Args:
        labels: bool (N, C), true for each right class.
        probabilities: (N, C)
    """
    right = np.log(np.maximum(probabilities, 1e-30))
    wrong = np.log1p(-np.minimum(probabilities, 1 - 2**-24))
    return -np.where(labels, right, wrong).sum(axis=1)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How often predictions are right that are so confident: Guo et al., arXiv 1706.04599.

    The images are put into bins of equal width by the confidence, which is the highest probability. Of each bin:
    `counts` of its images, their mean `confidence` and their `accuracy`; both 0 if there is none.
    """

    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def expected_error(self):
        """Equation 3: the mean over the images of the distance of their bin's accuracy and confidence, 0 to 1."""
        return float((self.counts * np.abs(self.accuracy - self.confidence)).sum() / self.counts.sum())


def calibration(confidence, is_right, num_bins=NUM_BINS):
    """The `Calibration` of N predictions; bin m of M holds the confidences in ((m - 1) / M, m / M]."""
    bins = np.digitize(confidence, np.linspace(0, 1, num_bins + 1)[1:-1], right=True)
    counts = np.bincount(bins, minlength=num_bins)
    sums = (np.bincount(bins, values, minlength=num_bins) for values in (confidence, is_right))
    return Calibration(counts, *(total / np.maximum(counts, 1) for total in sums))


@dataclasses.dataclass(frozen=True)
class ClassScore:
    """Of the `images` that show a class, those that are `right`, and what the others are most often taken for."""

    name: str
    images: int
    right: int
    taken_for: str = ""
    times: int = 0

    @property
    def accuracy(self):
        """From 0 to 1, or `None` without images."""
        return self.right / self.images if self.images else None


def class_scores(labels, predictions, class_names):
    """A `ClassScore` of each class, worst accuracy first, those without images last.

    An image with several right classes counts for each of them, and is right if one of them is predicted.

    Args:
        labels: bool (N, C), true for each right class.
        predictions: Predicted class of each image, (N,).
        class_names: C strings.
    """
    is_right = labels[np.arange(len(labels)), predictions]
    images, right = labels.sum(axis=0), labels[is_right].sum(axis=0)
    # Pairs that occur, not a matrix of all pairs: there may be twenty thousand classes.
    wrong, true = np.nonzero(labels[~is_right])
    pairs, counts = np.unique(np.stack([true, predictions[~is_right][wrong]]), axis=1, return_counts=True)
    commonest = {}
    for (label, prediction), times in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        if times > commonest.get(label, ("", 0))[1]:
            commonest[label] = class_names[prediction], times
    order = np.argsort(np.where(images, right / np.maximum(images, 1), 2), kind="stable")
    return [
        ClassScore(class_names[label], int(images[label]), int(right[label]), *commonest.get(label, ()))
        for label in order.tolist()
    ]
