"""Evaluation of multi-label classification. Shapes: N images, L labels, H W image size."""

import dataclasses
import functools

import numpy as np

from training.evaluation.metrics import binary_cross_entropy
from training.evaluation.outputs import Predictions

NUM_EXAMPLES = 12
THRESHOLD = 0.5


@dataclasses.dataclass(frozen=True)
class LabelScore:
    """The results of one label.

    `images` is the number of images that have the label. Without such images, `average_precision` and `recall` are
    `None`. `precision` and `recall` are those of the predictions with a probability of at least `THRESHOLD`. Without
    such predictions, `precision` is `None`.
    """

    name: str
    images: int
    average_precision: float | None
    precision: float | None
    recall: float | None


@dataclasses.dataclass(frozen=True)
class MultiLabel:
    """A model's predictions for the images of a split.

    `labels` is bool (N, L), and `probabilities` is (N, L). `names` has L strings. `examples` are {index: pixels from 0
    to 255 (H, W, channels)}, evenly spaced in the split.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    names: tuple[str, ...]
    examples: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def predictions(self):
        """The labels with a probability of at least `THRESHOLD`, bool (N, L)."""
        return self.probabilities >= THRESHOLD

    @functools.cached_property
    def by_label(self):
        """A `LabelScore` of each label, in increasing order of average precision. Labels without images are last."""
        scores = []
        for index, name in enumerate(self.names):
            truths, predicted = self.labels[:, index], self.predictions[:, index]
            right = int((truths & predicted).sum())
            precision = right / int(predicted.sum()) if predicted.any() else None
            average = average_precision(truths, self.probabilities[:, index]) if truths.any() else None
            recall = right / int(truths.sum()) if truths.any() else None
            scores.append(LabelScore(name, int(truths.sum()), average, precision, recall))
        return sorted(scores, key=lambda score: np.inf if score.average_precision is None else score.average_precision)

    @functools.cached_property
    def mean_average_precision(self):
        """Mean of the average precision of the labels that occur."""
        scores = [score.average_precision for score in self.by_label if score.average_precision is not None]
        return float(np.mean(scores)) if scores else 0.0

    @property
    def f1(self):
        """F1 score of all pairs of an image and a label (micro average), at `THRESHOLD`."""
        right = (self.labels & self.predictions).sum()
        return float(2 * right / max(self.labels.sum() + self.predictions.sum(), 1))

    @property
    def exact(self):
        """Share of the images whose predicted labels are exactly the right ones."""
        return float((self.labels == self.predictions).all(axis=1).mean())

    @property
    def loss(self):
        """Binary cross-entropy, summed over the labels, mean over the images, in nats."""
        return float(binary_cross_entropy(self.labels, self.probabilities).mean())

    def __str__(self):
        return (
            f"mean average precision {self.mean_average_precision:.2%}, F1 {self.f1:.2%}, all labels right for "
            f"{self.exact:.2%} ({len(self.labels):,} images)"
        )


def average_precision(truths, scores):
    """Average precision: the mean precision at the rank of each right image, as in scikit-learn.

    Images with the same score have the same rank, the lowest of them.

    Args:
        truths: bool (N,), with at least one true value.
        scores: (N,)
    """
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(truths[order])
    last = np.append(np.diff(scores[order]) != 0, True)  # The last image of each group of equal scores.
    precision, recall = (hits / np.arange(1, len(hits) + 1))[last], hits[last] / hits[-1]
    return float((np.diff(recall, prepend=0) * precision).sum())


def evaluate(model, dataset, splits, recipe):
    """Evaluates a model that returns probabilities of labels on one split, or on several splits together.

    Args:
        model: A model of this package.
        dataset: `training.data.dataset.Dataset` of images with labels.
        splits: Name of the split, or a list of names.
        recipe: `training.recipe.config.Recipe`

    Returns:
        A `MultiLabel`.
    """
    predictions = Predictions(model, dataset, splits, lambda sample: sample["labels"], recipe, NUM_EXAMPLES)
    labels, probabilities = zip(*((labels, outputs) for _, _, labels, outputs in predictions), strict=True)
    examples = {index: image for index, (image, _, _) in predictions.examples.items()}
    return MultiLabel(np.concatenate(labels), np.concatenate(probabilities), tuple(dataset.class_names), examples)
