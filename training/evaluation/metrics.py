"""Metrics of predictions, in NumPy. Shapes: N images, C classes."""

import dataclasses
import math

import numpy as np

NUM_BINS = 15


def wilson_interval(right, total, z=1.959964):
    """Wilson's score interval (low, high) of the accuracy `right / total`. The default `z` gives the 95 % interval."""
    accuracy, penalty = right / total, z * z / total
    centre = (accuracy + penalty / 2) / (1 + penalty)
    half = math.sqrt(penalty * accuracy * (1 - accuracy) + penalty * penalty / 4) / (1 + penalty)
    return max(0.0, centre - half), min(1.0, centre + half)


def top_k_is_right(labels, probabilities, k):
    """Whether each image has a right class among its `k` most probable classes: bool (N,).

    Args:
        labels: bool (N, C), true for each right class.
        probabilities: (N, C)
        k: Number of classes, less than C.
    """
    top = np.argpartition(probabilities, -k, axis=1)[:, -k:]
    return np.take_along_axis(labels, top, axis=1).any(axis=1)


def binary_cross_entropy(labels, probabilities):
    """Binary cross-entropy, summed over the classes, in nats: (N,).

    A probability of 1 for a wrong class is replaced by the largest float32 below 1. The loss is then 16.6 nats.

    Args:
        labels: bool (N, C), true for each right class.
        probabilities: (N, C)
    """
    right = np.log(np.maximum(probabilities, 1e-30))
    wrong = np.log1p(-np.minimum(probabilities, 1 - 2**-24))
    return -np.where(labels, right, wrong).sum(axis=1)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The accuracy of predictions as a function of their confidence (Guo et al., arXiv 1706.04599).

    The confidence of an image is its highest probability. Images are grouped by confidence into bins of equal width.
    `counts`, `confidence` and `accuracy` have one value per bin. A bin's `confidence` is a mean. The values of an empty
    bin are 0.
    """

    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def expected_error(self):
        """Expected calibration error, equation 3: mean |accuracy - confidence| of the bins, weighted by `counts`."""
        return float((self.counts * np.abs(self.accuracy - self.confidence)).sum() / self.counts.sum())


def calibration(confidence, is_right, num_bins=NUM_BINS):
    """The `Calibration` of N predictions. Bin m of M contains the confidences in ((m - 1) / M, m / M]."""
    bins = np.digitize(confidence, np.linspace(0, 1, num_bins + 1)[1:-1], right=True)
    counts = np.bincount(bins, minlength=num_bins)
    sums = (np.bincount(bins, values, minlength=num_bins) for values in (confidence, is_right))
    return Calibration(counts, *(total / np.maximum(counts, 1) for total in sums))


@dataclasses.dataclass(frozen=True)
class ClassScore:
    """Counts of images of one class. `taken_for` is the most frequent wrong prediction, and `times` is its number."""

    name: str
    images: int
    right: int
    taken_for: str = ""
    times: int = 0

    @property
    def accuracy(self):
        """Accuracy from 0 to 1, or `None` without images."""
        return self.right / self.images if self.images else None


def class_scores(labels, predictions, class_names):
    """A `ClassScore` of each class, in increasing order of accuracy. Classes without images are last.

    An image with several right classes counts for each of them. If the predicted class is one of them, the image counts
    as correct for all of its right classes.

    Args:
        labels: bool (N, C), true for each right class.
        predictions: Predicted class of each image, (N,).
        class_names: C strings.
    """
    is_right = labels[np.arange(len(labels)), predictions]
    images, right = labels.sum(axis=0), labels[is_right].sum(axis=0)
    # Only pairs that occur are counted, because there may be 20,000 classes.
    wrong, true = np.nonzero(labels[~is_right])
    pairs, counts = np.unique(np.stack([true, predictions[~is_right][wrong]]), axis=1, return_counts=True)
    most_frequent = {}
    for (label, prediction), times in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        if times > most_frequent.get(label, ("", 0))[1]:
            most_frequent[label] = class_names[prediction], times
    order = np.argsort(np.where(images, right / np.maximum(images, 1), 2), kind="stable")
    return [
        ClassScore(class_names[label], int(images[label]), int(right[label]), *most_frequent.get(label, ()))
        for label in order.tolist()
    ]


def evenly_spaced(most, count):
    """At most `most` indices that are evenly spaced among `count` images, as a set."""
    return set(np.linspace(0, count - 1, min(most, count)).astype(int).tolist())
