"""Measures the accuracy of simple classifiers on the frozen features of a model."""

import dataclasses
import functools

import numpy as np

from training.data.loading import load_dataset
from training.data.subsets import read_labels
from training.errors import InputError
from training.evaluation.fewshot import choose_shots, fewshot_accuracy, neighbour_accuracy
from training.evaluation.outputs import features, features_of_some
from training.reports.text import lay_out
from training.runs.opening import load_data, open_source, recipe_for
from training.tasks import require_task


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """An accuracy on the test images.

    `method` is `"ridge"` or `"neighbours"`. With `"ridge"`, `size` is the number of training images per class. With
    `"neighbours"`, it is the number of voting neighbours. `seed` selects the `num_train` training images. If `seed` is
    `None`, all training images are used.
    """

    method: str
    size: int
    seed: int | None
    accuracy: float
    num_train: int
    num_test: int


def measure(source, assignments, shots, num_seeds, neighbours=None):
    """Trains classifiers on a model's frozen features and measures their accuracies.

    Args:
        source: Model, as in `training.runs.opening.open_source`.
        assignments: Changes to the recipe's data. The data set's classes can differ from the model's classes.
        shots: Numbers of training images per class, such as `[1, 5]`. An accuracy is measured for each number.
        num_seeds: Number of seeds. Each seed selects different training images.
        neighbours: Number of voting neighbours of a nearest-neighbour classifier. `None`: no such classifier.

    Returns:
        A list of `Accuracy`, and a list of sentences that describe the data.

    Raises:
        InputError: If the model or the data cannot be loaded, or there are fewer training images than neighbours.
    """
    opened = open_source(source)
    recipe = recipe_for(opened, assignments)
    require_task(recipe, "fewshot")
    load = functools.partial(load_dataset, recipe.data)
    dataset = load_data(load, opened.run, opened.is_data_of_run(recipe.data))
    train, test = dataset.source("train"), dataset.source("test")
    labels, test_labels = read_labels(train, "the train split"), read_labels(test, "the test split")
    if neighbours is not None and neighbours > len(labels):
        raise InputError(f"--knn={neighbours} must be at most {len(labels):,}, the number of training images.")
    seeds = range(num_seeds)
    chosen = [choose_shots(labels, max(shots), seed) for seed in seeds]
    needed = np.unique(np.concatenate(chosen)) if neighbours is None else np.arange(len(labels))
    train_features = features_of_some(opened.model, train, recipe, needed)
    test_features = features(opened.model, test, recipe)

    accuracies = fewshot_accuracy(train_features, labels, test_features, test_labels, shots, seeds)
    per_class = np.bincount(labels, minlength=len(dataset.class_names))
    rows = [
        Accuracy("ridge", count, seed, accuracy, int(np.minimum(per_class, count).sum()), len(test_labels))
        for count in shots
        for seed, accuracy in zip(seeds, accuracies[count].tolist(), strict=True)
    ]
    if neighbours is not None:
        accuracy = neighbour_accuracy(train_features, labels, test_features, test_labels, neighbours)
        rows.append(Accuracy("neighbours", neighbours, None, accuracy, len(labels), len(test_labels)))
    title = f"{recipe.data.dataset}: {test_features.shape[1]:,} features of an image, {len(test_labels):,} test images"
    sentences, short = [title], np.flatnonzero(per_class < max(shots))
    if len(short):
        least = short[per_class[short].argmin()]
        sentences.append(
            f"{len(short):,} of {len(per_class):,} classes have fewer than {max(shots)} training images, so all their "
            f"images are used. {dataset.class_names[least]} has the fewest: {per_class[least]:,}."
        )
    return rows, sentences


def table(rows):
    """Formats accuracies as lines of text, with the mean, lowest and highest accuracy over the seeds."""
    lines: list[tuple[str, ...]] = [("learned from", "images", "accuracy", "lowest", "highest")]
    for method, size in dict.fromkeys((row.method, row.size) for row in rows):
        group = [row for row in rows if (row.method, row.size) == (method, size)]
        values = np.array([row.accuracy for row in group])
        images = f"{size} of each class" if method == "ridge" else f"all, {size} nearest neighbours"
        spread = [f"{value:.2%}" for value in (values.min(), values.max())] if len(values) > 1 else ["", ""]
        lines.append((images, f"{group[0].num_train:,}", f"{values.mean():.2%}", *spread))
    return lay_out(lines)
