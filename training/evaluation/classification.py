"""Evaluation of classifiers. Shapes: N images, H W image size, C classes."""

import dataclasses
import functools

import numpy as np

from training.data.pipeline import read_splits
from training.data.samples import sample_decoder
from training.data.subsets import multi_hot
from training.errors import InputError
from training.evaluation.metrics import binary_cross_entropy, calibration, class_scores, evenly_spaced, top_k_is_right
from training.evaluation.outputs import Predictions

NUM_MISTAKES = 15
NUM_EXAMPLES = 6
_MIN_CLASSES_FOR_TOP_5 = 6


@dataclasses.dataclass(frozen=True)
class Classification:
    """A model's predictions for the images of a split.

    `labels` is bool (N, C), true for each right class. `probabilities` is (N, C), and `class_names` has C strings.
    `mistakes` and `examples` are {index: pixels from 0 to 255 (H, W, channels)}. `mistakes` starts with the most
    confident mistake. `examples` are evenly spaced in the split. Images without a right class are left out, and
    `num_unlabelled` is their number. If `has_sigmoids` is false, the probabilities of an image sum to 1.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    class_names: tuple[str, ...]
    mistakes: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    examples: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    num_unlabelled: int = 0
    has_sigmoids: bool = False

    @functools.cached_property
    def predictions(self):
        """The most probable class of each image, (N,)."""
        return self.probabilities.argmax(axis=1)

    @functools.cached_property
    def confidence(self):
        """The probability of the predicted class of each image, (N,)."""
        return self.probabilities.max(axis=1).astype(float)

    @functools.cached_property
    def is_right(self):
        """Whether the predicted class of each image is a right one, (N,)."""
        return self.labels[np.arange(len(self.labels)), self.predictions]

    @property
    def accuracy(self):
        """Fraction of the images whose most probable class is a right one."""
        return float(self.is_right.mean())

    @functools.cached_property
    def top5_accuracy(self):
        """Fraction of the images with a right class among the five most probable classes; `None` if C < 6."""
        if len(self.class_names) < _MIN_CLASSES_FOR_TOP_5:
            return None
        return float(top_k_is_right(self.labels, self.probabilities, 5).mean())

    @functools.cached_property
    def loss(self):
        """Mean cross-entropy in nats: minus the logarithm of the total probability of the right classes.

        With sigmoids, the binary cross-entropies of all classes are summed, as in training, but without smoothing.
        """
        if self.has_sigmoids:
            return float(binary_cross_entropy(self.labels, self.probabilities).mean())
        right = np.einsum("nc,nc->n", self.labels, self.probabilities)
        return float(-np.log(np.maximum(right, 1e-30)).mean())

    @functools.cached_property
    def calibration(self):
        """The `training.evaluation.metrics.Calibration` of the predictions."""
        return calibration(self.confidence, self.is_right)

    @property
    def mean_confidence(self):
        """Mean probability of the predicted classes. In a calibrated model it equals the accuracy."""
        return float(self.confidence.mean())

    @property
    def has_several_labels(self):
        """Whether some image has more than one right class."""
        return bool((self.labels.sum(axis=1) > 1).any())

    @property
    def confusion(self):
        """Number of images of each pair (true class, predicted class), (C, C). Each image must have one right class."""
        if self.has_several_labels:
            raise ValueError("A confusion matrix needs one right class per image. Received: images with several.")
        counts = np.zeros((len(self.class_names), len(self.class_names)), int)
        np.add.at(counts, (self.labels.argmax(axis=1), self.predictions), 1)
        return counts

    @functools.cached_property
    def by_class(self):
        """A `training.evaluation.metrics.ClassScore` of each class, worst first."""
        return class_scores(self.labels, self.predictions, self.class_names)

    def __str__(self):
        return (
            f"accuracy {self.accuracy:.2%} ({self.is_right.sum()} of {len(self.labels)} images), "
            f"cross-entropy {self.loss:z.4f} nats"
        )


def evaluate(model, dataset, splits, recipe, restrict=None):
    """Evaluates a classifier on one split, or on several splits together.

    Args:
        model: A classifier of this package that returns probabilities.
        dataset: `training.data.dataset.Dataset`
        splits: Name of the split, or a list of names.
        recipe: `training.recipe.config.Recipe`
        restrict: Function that converts probabilities of the model's classes, (B, model classes), to those of the data
            set's classes, (B, C). `None` if the model and the data set have the same classes.

    Returns:
        A `Classification`.

    Raises:
        InputError: If no image of the split has a label.
    """
    splits = [splits] if isinstance(splits, str) else splits
    predictions = Predictions(model, dataset, splits, _multi_hot(dataset), recipe, num_examples=0)
    collector = _Collector(sum(dataset.splits[split].size for split in splits))
    for _, images, labels, probabilities in predictions:
        if restrict is not None:
            probabilities = restrict(probabilities)
        is_labelled = labels.any(axis=1)
        collector.num_unlabelled += int((~is_labelled).sum())
        batch = Classification(labels[is_labelled], probabilities[is_labelled], dataset.class_names)
        collector.add(batch, images[is_labelled])
    if not collector.num_images:
        split = " and ".join(splits)
        raise InputError(f"None of the {collector.num_unlabelled:,} images of the {split} split has a label.")
    return Classification(
        np.concatenate([batch.labels for batch in collector.batches]),
        np.concatenate([batch.probabilities for batch in collector.batches]),
        dataset.class_names,
        {index: image for index, (_, image) in collector.mistakes.items()},
        collector.examples,
        collector.num_unlabelled,
        has_sigmoids=recipe.fit.loss == "sigmoid",
    )


class _Collector:
    """Collects the evaluations of batches. `size` is the number of images of all splits."""

    def __init__(self, size):
        self.example_indices = evenly_spaced(NUM_EXAMPLES, size)
        self.batches, self.mistakes, self.examples = [], {}, {}
        self.num_images = self.num_unlabelled = 0

    def add(self, batch, images):
        """Adds the evaluation of a batch. Images are copied, because a view would keep the whole batch in memory."""
        first, end = self.num_images, self.num_images + len(images)
        wrong = np.flatnonzero(~batch.is_right)
        wrong = wrong[np.argsort(-batch.confidence[wrong], kind="stable")][:NUM_MISTAKES]
        self.mistakes |= {first + i: (batch.confidence[i], images[i].copy()) for i in wrong.tolist()}
        ranked = sorted(self.mistakes.items(), key=lambda item: -item[1][0])
        self.mistakes = dict(ranked[:NUM_MISTAKES])
        self.examples |= {i: images[i - first].copy() for i in range(first, end) if i in self.example_indices}
        self.batches.append(batch)
        self.num_images = end


def nearest_neighbour_accuracy(model, dataset, recipe, max_values=50_000_000):
    """Accuracy of a nearest-neighbour classifier on the test images, as a baseline.

    The classifier compares raw pixels at the model's input size, and keeps all training and validation images in
    memory. The result is `None` if these images have more than `max_values` values in total.
    """
    from sklearn.neighbors import KNeighborsClassifier

    known_splits = [split for split in dataset.splits if split != "test"]
    num_images = sum(dataset.splits[split].size for split in known_splits)
    if num_images * np.prod(model.input_shape[1:]) > max_values:
        return None

    def labelled(splits):
        _, batches = read_splits(dataset, splits, sample_decoder(model), _multi_hot(dataset), recipe.fit.batch_size)
        for images, labels, is_real in batches:
            is_labelled = is_real & labels.any(axis=1)
            yield images[is_labelled].reshape(is_labelled.sum(), -1).astype("float32"), labels[is_labelled]

    pixels, labels = zip(*labelled(known_splits), strict=True)
    classifier = KNeighborsClassifier(n_neighbors=1)
    classifier.fit(np.concatenate(pixels), np.concatenate(labels).argmax(axis=1))
    is_right = [
        labels[np.arange(len(labels)), classifier.predict(pixels)] for pixels, labels in labelled("test") if len(labels)
    ]
    return float(np.concatenate(is_right).mean())


def _multi_hot(dataset):
    """A function that returns the label of a sample as bool (C,)."""
    return lambda sample: multi_hot(sample["label"], len(dataset.class_names)) > 0
