"""How good a model is on images that it has not seen. N images, H W channels, C classes."""

import dataclasses
import functools
import itertools

import numpy as np

from keras_vit.decoding import image_decoder
from keras_vit.label_spaces import imagenet1k_classes
from training.assignments import override
from training.datasets.objectnet import is_objectnet, shared_part
from training.errors import InputError
from training.metrics import binary_cross_entropy, calibration, class_scores, top_k_is_right, wilson_interval
from training.opening import open_model, recipe_for
from training.pipeline import evaluation_batches
from training.runs import shortened
from training.tables import lay_out
from training.tasks import task_of

NUM_MISTAKES = 15
NUM_EXAMPLES = 6
_MIN_CLASSES_FOR_TOP_5 = 6
_NUM_WORST_CLASSES = 20
_OF_OTHER_DATA = (
    *("data.label", "data.mask", "data.mask_classes", "data.mask_offset"),
    *("data.test_split", "data.test_fraction"),
)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a model makes of the images of a split.

    `labels` bool (N, C), true for each right class, of which every image has at least one; `probabilities` (N, C);
    `class_names` C strings. Of the images themselves, each {index: pixels from 0 to 255 (H, W, channels)}, only the
    most confident `mistakes`, most confident first, and some `examples`, spread over the split, are kept.
    `num_unlabelled` images of the split have no right class and are left out. With `has_sigmoids` each class has a
    probability of its own; otherwise those of an image add up to 1.
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
        """Part of the images whose most probable class is a right one."""
        return float(self.is_right.mean())

    @functools.cached_property
    def top5_accuracy(self):
        """Part of the images with a right class among the five most probable ones; `None` below six classes."""
        if len(self.class_names) < _MIN_CLASSES_FOR_TOP_5:
            return None
        return float(top_k_is_right(self.labels, self.probabilities, 5).mean())

    @functools.cached_property
    def loss(self):
        """Mean cross-entropy in nats: minus the logarithm of the right class's probability, or the right classes'.

        Of sigmoids it is the sum over all classes of each one's own, as in training (without smoothing).
        """
        if self.has_sigmoids:
            return float(binary_cross_entropy(self.labels, self.probabilities).mean())
        right = np.einsum("nc,nc->n", self.labels, self.probabilities)
        return float(-np.log(np.maximum(right, 1e-30)).mean())

    @functools.cached_property
    def calibration(self):
        """`training.metrics.Calibration` of the predictions."""
        return calibration(self.confidence, self.is_right)

    @property
    def mean_confidence(self):
        """Mean probability of the predicted classes; in a calibrated model it is the accuracy."""
        return float(self.confidence.mean())

    @property
    def has_several_labels(self):
        """Whether more than one class is right for some image."""
        return bool((self.labels.sum(axis=1) > 1).any())

    @property
    def confusion(self):
        """(C, C) counts: row the true class, column the predicted one. Each image must have one right class."""
        if self.has_several_labels:
            raise ValueError("A confusion matrix needs one right class an image. Received: images with several.")
        counts = np.zeros((len(self.class_names), len(self.class_names)), int)
        np.add.at(counts, (self.labels.argmax(axis=1), self.predictions), 1)
        return counts

    @functools.cached_property
    def by_class(self):
        """A `training.metrics.ClassScore` of each class, worst first."""
        return class_scores(self.labels, self.predictions, self.class_names)

    def __str__(self):
        return (
            f"accuracy {self.accuracy:.2%} ({self.is_right.sum()} of {len(self.labels)} images), "
            f"cross-entropy {self.loss:z.4f} nats"
        )


def evaluate(model, dataset, splits, recipe, restrict=None):
    """What a model makes of a split, or of several together.

    Args:
        model: A classifier of this package that returns probabilities.
        dataset: `training.data.Dataset`
        splits: Name of the split, or a list of names.
        recipe: `training.config.Recipe`
        restrict: Function from the model's probabilities (B, its classes) to those of the data set's classes; `None`:
            they are the same classes.

    Returns:
        An `Evaluation`.

    Raises:
        InputError: If no image of the split has a label.
    """
    splits = [splits] if isinstance(splits, str) else splits
    gathered = _Gathered(sum(dataset.splits[split].size for split in splits))
    batches = itertools.chain.from_iterable(_batches(model, dataset, split, recipe) for split in splits)
    for images, labels, is_real in batches:
        # The whole batch, with its padding: another size would be compiled anew.
        probabilities = model.predict_on_batch(images)
        if restrict is not None:
            probabilities = restrict(probabilities)
        is_labelled = is_real & labels.any(axis=1)
        gathered.num_unlabelled += int(is_real.sum() - is_labelled.sum())
        part = Evaluation(labels[is_labelled], probabilities[is_labelled], dataset.class_names)
        gathered.add(part, images[is_labelled])
    if not gathered.num_images:
        raise InputError(
            f"None of the {gathered.num_unlabelled:,} images of the {' and '.join(splits)} split has a label."
        )
    return Evaluation(
        np.concatenate([part.labels for part in gathered.parts]),
        np.concatenate([part.probabilities for part in gathered.parts]),
        dataset.class_names,
        {index: image for index, (_, image) in gathered.mistakes.items()},
        gathered.examples,
        gathered.num_unlabelled,
        has_sigmoids=recipe.fit.loss == "sigmoid",
    )


class _Gathered:
    """What is kept of the batches so far, of a split of about `size` images."""

    def __init__(self, size):
        self.wanted = set(np.linspace(0, size - 1, min(NUM_EXAMPLES, size)).astype(int).tolist())
        self.parts, self.mistakes, self.examples = [], {}, {}
        self.num_images = self.num_unlabelled = 0

    def add(self, part, images):
        """Adds the evaluation of some images. Of these it keeps copies: a view would keep its whole batch in memory."""
        first, end = self.num_images, self.num_images + len(images)
        wrong = np.flatnonzero(~part.is_right)
        wrong = wrong[np.argsort(-part.confidence[wrong], kind="stable")][:NUM_MISTAKES]
        self.mistakes |= {first + i: (part.confidence[i], images[i].copy()) for i in wrong.tolist()}
        ranked = sorted(self.mistakes.items(), key=lambda item: -item[1][0])
        self.mistakes = dict(ranked[:NUM_MISTAKES])
        self.examples |= {i: images[i - first].copy() for i in range(first, end) if i in self.wanted}
        self.parts.append(part)
        self.num_images = end


def nearest_neighbour_accuracy(model, dataset, recipe, max_values=50_000_000):
    """Accuracy of a nearest-neighbour classifier on the same test images, which tells how hard they are.

    It compares raw pixels, at the model's input size, with those of the training and validation images, of which it
    holds all in memory, and of the test images a batch. `None` if the former have more than `max_values` values
    together.
    """
    from sklearn.neighbors import KNeighborsClassifier

    known = [split for split in dataset.splits if split != "test"]
    num_images = sum(dataset.splits[split].size for split in known)
    if num_images * np.prod(model.input_shape[1:]) > max_values:
        return None

    def labelled(split):
        for images, labels, is_real in _batches(model, dataset, split, recipe):
            is_labelled = is_real & labels.any(axis=1)
            yield images[is_labelled].reshape(is_labelled.sum(), -1).astype("float32"), labels[is_labelled]

    pixels, labels = zip(*itertools.chain.from_iterable(map(labelled, known)), strict=True)
    classifier = KNeighborsClassifier(n_neighbors=1)
    classifier.fit(np.concatenate(pixels), np.concatenate(labels).argmax(axis=1))
    is_right = [
        labels[np.arange(len(labels)), classifier.predict(pixels)] for pixels, labels in labelled("test") if len(labels)
    ]
    return float(np.concatenate(is_right).mean())


def _batches(model, dataset, split, recipe):
    """(images (B, H, W, channels), labels bool (B, C), whether each is an image of the split and not padding (B,))."""
    once = override(recipe, ["data.cache=false"])
    batches = evaluation_batches(dataset, split, image_decoder(model), once)(0, 1, recipe.fit.batch_size)
    for images, labels, weights in batches.as_numpy_iterator():
        yield images, labels > 0, weights > 0


def evaluate_source(source, assignments=(), split="test"):
    """What a model makes of a split, in words.

    Args:
        source: A run's folder, or what else `training.opening.open_model` opens; of weights, those of ImageNet-1k.
        assignments: Changes of the data: where they are, how they are read, or `data.dataset=NAME`, another data set
            of the same classes. The splits of another data set can be chosen; those of the run's own cannot. A model of
            ImageNet-1k is evaluated on a folder with the classes of ObjectNet too.
        split: Name of the split; `"all"`: all images of data that the model was not trained on.

    Returns:
        Text of some lines.

    Raises:
        InputError: If there is no such model, split or data, or the data have other classes than the model.
    """
    opened = open_model(source)
    recipe = recipe_for(opened, assignments, _OF_OTHER_DATA)
    if opened.class_names is None:
        raise InputError(f"The classes of {source} are not known. Give the folder of a run, or weights of ImageNet-1k.")
    if opened.recipe is None:
        recipe = override(recipe, [f"fit.loss={_activation(opened)}"])
    if split == "all" and opened.is_own_data(recipe.data):
        raise InputError(f"{source} was trained on images of these data. Choose the test split, or name other data.")
    task = task_of(recipe)
    dataset = task.load(disjoint=split == "all")
    splits = list(dataset.splits) if split == "all" else [split]
    for name in splits:
        dataset.source(name)
    title = f"{recipe.data.dataset}, {'all images' if split == 'all' else f'{split} split'}"
    if opened.class_names == _imagenet1k_ids() and is_objectnet(dataset.class_names):
        return f"{title}\n{_describe_objectnet(opened.model, shared_part(dataset, splits), splits, recipe)}"
    _check_classes(opened.class_names, dataset)
    return f"{title}\n{task.describe(task.evaluate(opened.model, dataset, splits))}"


def _activation(opened):
    """What makes a model's outputs probabilities."""
    name = getattr(getattr(opened.model.layers[-1], "activation", None), "__name__", None)
    if name not in ("softmax", "sigmoid"):
        raise InputError(
            f"{opened.source} does not end in probabilities. Build it with classifier_activation='softmax'."
        )
    return name


def _imagenet1k_ids():
    return [wnid for wnid, _ in imagenet1k_classes()]


def _check_classes(class_names, dataset):
    if list(dataset.class_names) != class_names:
        raise InputError(
            f"The model knows the classes {shortened(class_names)}; the data set has {shortened(dataset.class_names)}."
        )


def _describe_objectnet(model, shared, splits, recipe):
    restrict = functools.partial(shared.restrict, has_sigmoids=recipe.fit.loss == "sigmoid")
    evaluation = evaluate(model, shared.dataset, splits, recipe, restrict)
    return (
        f"ObjectNet: of the model's {model.output_shape[-1]:,} outputs those of the {len(shared.dataset.class_names)} "
        f"shared classes are compared; {shared.num_left_out:,} images of other classes are left out.\n"
        f"{describe(evaluation)}"
    )


def describe(evaluation):
    """An evaluation as lines of text, with the classes that are recognised worst."""
    total = len(evaluation.labels)
    lines = [_accuracy_line("top-1 accuracy", evaluation.accuracy, total)]
    if evaluation.top5_accuracy is not None:
        lines.append(_accuracy_line("top-5 accuracy", evaluation.top5_accuracy, total))
    of_what = ", the sum over a sigmoid for each class" if evaluation.has_sigmoids else ""
    lines.append(f"cross-entropy      {evaluation.loss:z.4f} nats{of_what}")
    lines.append(
        f"calibration error  {evaluation.calibration.expected_error:.2%} (expected, "
        f"{len(evaluation.calibration.counts)} bins; mean confidence {evaluation.mean_confidence:.2%})"
    )
    if evaluation.has_several_labels:
        lines.append("An image may have several right classes, as in ReaL (arXiv 2006.07159); naming one is enough.")
    if evaluation.num_unlabelled:
        lines.append(f"{evaluation.num_unlabelled:,} images without a right class are left out.")
    return "\n".join([*lines, "", _classes(evaluation.by_class)])


def _accuracy_line(name, accuracy, total):
    right = round(accuracy * total)
    low, high = wilson_interval(right, total)
    return f"{name}     {accuracy:.2%} ({right:,} of {total:,} images; 95% Wilson interval {low:.2%} to {high:.2%})"


def _classes(scores):
    shown = scores[:_NUM_WORST_CLASSES]
    which = "Classes" if len(shown) == len(scores) else f"The {len(shown)} worst of {len(scores):,} classes"
    rows = [("class", "images", "right", "accuracy", "most often taken for")]
    for score in shown:
        accuracy = "none" if score.accuracy is None else f"{score.accuracy:.1%}"
        taken_for = f"{score.taken_for} ({score.times:,})" if score.times else ""
        rows.append((score.name, f"{score.images:,}", f"{score.right:,}", accuracy, taken_for))
    return f"{which}, worst first:\n{lay_out(rows, texts=(0, 4))}"
