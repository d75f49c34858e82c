"""Evaluates a run's model or published weights on the run's data or on other data."""

import collections
import dataclasses
import functools
import pathlib

from keras_vit.checks import did_you_mean
from keras_vit.label_spaces import imagenet1k_classes
from training.data.sets.objectnet import is_objectnet, shared_part
from training.data.subsets import with_names
from training.errors import InputError, shortened_names
from training.evaluation.classification import evaluate
from training.recipe.assignments import override
from training.reports.text import classification_text
from training.runs.folder import read_record
from training.runs.opening import load_data, open_source, recipe_for
from training.tasks import TASKS, require_task

_OTHER_DATA_FIELDS = (
    *("data.annotations", "data.label", "data.mask", "data.mask_classes", "data.mask_offset"),
    *("data.test_split", "data.test_fraction"),
)


def evaluate_source(source, assignments=(), split="test", names=None, templates="clip_best"):
    """Evaluates a model on a split, and describes the result as text.

    Args:
        source: A run's folder, or weights with the classes of ImageNet-1k, as in `training.runs.opening.open_source`.
        assignments: Changes of the recipe's data, e.g. `data.directory=DIR`. `data.dataset=NAME` chooses another data
            set with the same classes. The fields of the splits can be changed only for another data set. A model of
            ImageNet-1k can also be evaluated on a folder with the classes of ObjectNet.
        split: Name of the split. `"all"`, all images, is not possible for the data that the model was trained on.
            `"new"` are the images that were added to these data since then.
        names: Path of a file with the names of the classes, if `source` is an image-text model. Each line is a class,
            as its label in the data, or as `label=name, other name`.
        templates: As in `keras_vit.ImageTextModel.classifier`.

    Returns:
        The result as lines of text.

    Raises:
        InputError: If there is no such model, split or data set, if the data set has other classes than the model, or
            if `split` is `"all"` and contains images that the model was trained on.
    """
    words = None if names is None else read_names(names)
    opened = open_source(source, words, templates)
    recipe = recipe_for(opened, assignments, _OTHER_DATA_FIELDS)
    if opened.class_names is None:
        raise InputError(
            f"{source} does not say which classes its {opened.model.output_shape[-1]:,} outputs are. Give the folder "
            f"of a run, or the name of weights of ImageNet-1k in the catalogue, such as Ti/16@augreg-i21k-i1k-224."
        )
    if opened.recipe is None:
        activation = getattr(getattr(opened.model.layers[-1], "activation", None), "__name__", None)
        if activation not in ("softmax", "sigmoid"):
            raise InputError(f"{source} does not output probabilities. Build it with classifier_activation='softmax'.")
        recipe = override(recipe, [f"fit.loss={activation}"])
    is_data_of_run = opened.is_data_of_run(recipe.data)
    if split == "all" and is_data_of_run:
        raise InputError(
            f"{source} was trained on images of these data. Choose --split test, --split new for images that were "
            f"added, or another data set."
        )
    require_task(recipe, "evaluate")
    if TASKS[recipe.task].annotation == "values":  # Other columns need not be numbers.
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, classes=tuple(opened.class_names)))
    task = TASKS[recipe.task](recipe)
    dataset = load_data(task.load, opened.run, is_data_of_run, disjoint=split == "all")
    if split == "all":
        _refuse_seen(opened, dataset)
    splits = list(dataset.splits) if split == "all" else [split]
    for name in splits:
        dataset.source(name)
    title = f"{recipe.data.dataset}, {'all images' if split == 'all' else f'{split} split'}"
    imagenet1k_ids = [wnid for wnid, _ in imagenet1k_classes()]
    if opened.class_names == imagenet1k_ids and is_objectnet(dataset.class_names):
        shared = shared_part(dataset, splits)
        restrict = functools.partial(shared.restrict, has_sigmoids=recipe.fit.loss == "sigmoid")
        evaluation = evaluate(opened.model, shared.dataset, splits, recipe, restrict)
        return (
            f"{title}\nObjectNet: the model's {len(imagenet1k_ids):,} outputs are restricted to the "
            f"{len(shared.dataset.class_names)} shared classes; {shared.num_left_out:,} images of other classes are "
            f"left out.\n{classification_text(evaluation)}"
        )
    if words is not None:
        _check_named(dataset.class_names, words)
    if words is not None and len(dataset.class_names) == len(words):  # In the order of the data.
        opened = open_source(source, {label: words[label] for label in dataset.class_names}, templates)
    if task.annotation == "labels" and set(dataset.class_names) <= set(opened.class_names):
        dataset = with_names("labels", dataset, opened.class_names, are_known=False)
    if list(dataset.class_names) != opened.class_names:
        raise InputError(
            f"The model has the {task.predicted} {shortened_names(opened.class_names)}, but the data set has "
            f"{shortened_names(dataset.class_names)}. Choose data with the same {task.predicted}."
        )
    return f"{title}\n{task.evaluation_text(task.evaluate(opened.model, dataset, splits))}"


def _check_named(class_names, words):
    if unnamed := [name for name in class_names if name not in words]:
        others = [label for label in words if label not in class_names]
        raise InputError(
            f"--names has no line for these classes of the data: {shortened_names(unnamed)}."
            f"{did_you_mean(unnamed[0], others)} Lines of no class of the data: {shortened_names(others) or 'none'}. "
            f"Write a line for each class: its label in the data, or LABEL=name, other name."
        )


def read_names(path):
    """{label of a class: its names} from a text file."""
    try:
        lines = [line.strip() for line in pathlib.Path(path).read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--names={path} cannot be read as text in UTF-8: {error}") from None
    pairs = [line.partition("=")[::2] for line in lines if line]
    names = [(label.strip(), [each.strip() for each in text.split(",") if each.strip()]) for label, text in pairs]
    if twice := [label for label, number in collections.Counter(label for label, _ in names).items() if number > 1]:
        raise InputError(f"--names={path} names these classes several times: {shortened_names(twice)}")
    return {label: found or [label.replace("_", " ")] for label, found in names}


def _refuse_seen(opened, dataset):
    """Raises an InputError if a model has seen images of a data set in its training."""
    record = read_record(opened.run, "measure_elsewhere")
    seen = record.seen(dataset.contents) if record else []
    if seen:
        new = ", --split new for files that were added" if record.is_measured_on(dataset.contents) else ""
        raise InputError(
            f"{opened.source} has seen {len(seen):,} of these {len(list(dataset.contents)):,} files in its training, "
            f"such as {seen[0].path}. Choose --split test{new}, or other data."
        )
