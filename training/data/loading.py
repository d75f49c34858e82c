"""Loads the data set of a recipe: its classes, and the source of each split."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from training.data.contents import change_lines
from training.data.dataset import Dataset
from training.data.images import IntactFiles
from training.data.masks import encode_png
from training.data.sets import digits, shapes
from training.data.sets.folder import read_folder
from training.data.sets.mask_folder import read_mask_folder
from training.data.sets.records import read_records
from training.data.sets.table import read_image_table
from training.data.sets.tfds import load_tfds
from training.data.sources import IndexedSource
from training.data.subsets import with_classes
from training.errors import InputError


def load_dataset(data, disjoint=True, record=None):
    """Loads the data set that `training.recipe.config.Data` describes.

    Args:
        data: `training.recipe.config.Data`
        disjoint: Whether to raise an error if an image is in two splits. Must be `True` if a model is trained on one
            split and tested on another.
        record: `training.data.contents.Record` of the run that trained the model. Images that this run had are in the
            splits in which it had them. Differences are printed.

    Returns:
        A `Dataset`.

    Raises:
        InputError: If the data set is unavailable, or an image is in two splits, or test images were training images of
            the run. The message suggests a remedy.
    """
    if data.dataset in _ELSEWHERE:
        contents, recipe = _ELSEWHERE[data.dataset]
        raise InputError(f"data.dataset={data.dataset} has {contents}, but no classes. Choose the recipe {recipe}.")
    load = {"folder": _load_folder, "records": _load_records, "table": _load_table("classes")}.get(
        data.dataset, load_tfds
    )
    return _finish(load(data, record), data, disjoint, record)


def load_masks(data, disjoint=True, record=None):
    """Same as `load_dataset`, for segmentation. The labels are encoded masks."""
    load = {"folder": _load_mask_folder, "shapes": _load_shapes}.get(data.dataset)
    if load is None and data.mask is None:
        raise InputError(
            f"data.dataset={data.dataset} has no masks. Choose shapes, folder, or a data set of TFDS with the "
            f"feature that contains its masks, such as data.mask=segmentation_mask"
        )
    return _finish((load or load_tfds)(data, record), data, disjoint, record)


def load_labels(data, disjoint=True, record=None):
    """Same as `load_dataset`, for multi-label classification. A label is an array of the indices of all labels."""
    load = {"digit_sets": _load_digit_sets, "table": _load_table("labels")}.get(data.dataset)
    if load is None:
        raise InputError(f"data.dataset={data.dataset} has no labels for task=multilabel. Choose table or digit_sets.")
    return _finish(load(data, record), data, disjoint, record)


def load_values(data, disjoint=True, record=None):
    """Same as `load_dataset`, for regression. A label is a vector of values, float32."""
    load = {"digit_sums": _load_digit_sums, "table": _load_table("values")}.get(data.dataset)
    if load is None:
        raise InputError(f"data.dataset={data.dataset} has no values for task=regression. Choose table or digit_sums.")
    return _finish(load(data, record), data, disjoint, record)


_ELSEWHERE = {
    "shapes": ("masks", "shapes_vt_fpn"),
    "digit_sets": ("several labels per image", "digit_sets"),
    "digit_sums": ("values", "digit_sums"),
}
"""{data set without classes: (what it has, recipe that uses it)}"""


def _finish(dataset, data, disjoint, record):
    """Checks the splits of a data set, and selects `data.train_images` of its training images at random."""
    if disjoint and (overlap := dataset.find_overlap()):
        raise InputError(overlap)
    if record is not None:
        if record.is_measured_on(dataset.contents):
            changes = change_lines(dataset.contents.changes_since(record.contents))
            if changes:
                print(f"The data have changed since the training of {record.run}:", *changes, sep="\n  ")
        if record.purpose == "continue":
            contents = record.followed_by(dataset.contents)
            dataset = dataclasses.replace(dataset, list_contents=lambda: contents)
    if data.classes is not None:
        dataset = with_classes(dataset, data.classes)
    if data.train_images is None:
        return dataset
    if data.dataset == "folder" and record is not None and record.is_measured_on(dataset.contents):
        images, recorded = (contents.items.get("train", ()) for contents in (dataset.contents, record.contents))
        if len(images) != len(recorded):
            print(f"data.train_images={data.train_images} is ignored, because the training images have changed.")
            return dataset
    source = dataset.source("train")
    if data.train_images > source.size:
        raise InputError(
            f"data.train_images={data.train_images}, but {data.dataset} has {source.size:,} images for training. "
            f"Choose fewer, or data.train_images=none for all of them."
        )
    drawn = source.draw(data.train_images, data.train_images_seed)
    return dataclasses.replace(dataset, splits=dataset.splits | {"train": drawn})


def _load_folder(data, record):
    folder = _read(read_folder, data, record)
    if data.max_failures and record is not None and record.purpose == "resume":
        folder = folder.completed(record.contents, data.max_failures)
    splits = _file_sources(folder, _read_class)
    if data.max_failures and "train" in splits:
        paths, labels = zip(*folder.splits["train"], strict=True)
        files, labels = (
            IntactFiles(paths, [folder.items[path] for path in paths], data.max_failures),
            tf.constant(labels),
        )

        def read(index):
            content, index = files.read(index)
            return {"image": content, "label": _read_class(labels[index])}

        splits["train"] = IndexedSource(len(paths), read)
    no_test_split = (
        f"{data.directory} has no test images, and too few images for a test split: {len(folder.items)} in "
        f"{len(folder.class_names)} classes. Copies of a file count as one image. Add images, or raise "
        f"data.test_fraction."
    )
    return Dataset(folder.class_names, splits, lambda: folder.overlap, lambda: folder.contents, no_test_split)


def _read(read, data, record):
    """Reads a folder, and restores the splits of a run."""
    folder = read(data.directory, data.test_fraction, data.validation_fraction)
    for path, problem in folder.skipped.items():
        print(f"Skipped {path}: {problem}")
    if folder.skipped:
        print(f"Skipped {len(folder.skipped)} in total.")
    if record is not None:
        folder = folder.consistent_with(record)
    for note in folder.notes:
        print(note)
    return folder


def _load_table(kind):
    """A function that loads a table of images with annotations of a kind of `read_image_table`."""

    def load(data, record):
        table = _read(functools.partial(read_image_table, kind), data, record)
        no_test_split = f"{data.directory} has no test images. Add images, or raise data.test_fraction."
        if kind == "labels":
            sources = _file_sources(table, tf.identity, lambda labels: tf.ragged.constant(labels, tf.int64))
        elif kind == "values":
            sources = _file_sources(table, tf.identity, lambda labels: tf.constant(labels, tf.float32))
        else:
            sources = _file_sources(table, _read_class)
        return Dataset(table.class_names, sources, lambda: table.overlap, lambda: table.contents, no_test_split)

    return load


def _file_sources(folder, read_label, as_tensor=tf.constant):
    def source(pairs):
        paths, labels = zip(*pairs, strict=True)
        paths, labels = tf.constant(paths), as_tensor(labels)
        return IndexedSource(
            len(pairs), lambda index: {"image": tf.io.read_file(paths[index]), "label": read_label(labels[index])}
        )

    return {name: source(pairs) for name, pairs in folder.splits.items() if pairs}


def _read_class(label):
    return tf.cast(label, tf.int64)


def _load_mask_folder(data, record):
    folder = _read(read_mask_folder, data, record)
    no_test_split = (
        f"{data.directory} has too few images for a test split: {len(folder.items)}. Add images, or raise "
        f"data.test_fraction."
    )
    splits = _file_sources(folder, tf.io.read_file)
    return Dataset(folder.class_names, splits, lambda: folder.overlap, lambda: folder.contents, no_test_split)


def _load_shapes(data, record):
    return Dataset(shapes.CLASS_NAMES, _drawn(data, shapes.NUM_IMAGES, shapes.encoded, tf.string, []))


def _load_digit_sets(data, record):
    def draw(split, number):
        image, drawn = digits.draw_triple(split, number)
        return encode_png(image[..., 0]), np.unique(drawn)

    names = tuple(map(str, range(10)))
    return Dataset(names, _drawn(data, digits.NUM_PICTURES, draw, tf.int64, [None]))


def _load_digit_sums(data, record):
    def draw(split, number):
        image, drawn = digits.draw_triple(split, number)
        return encode_png(image[..., 0]), np.array([drawn.sum()], "float32")

    return Dataset(("sum",), _drawn(data, digits.NUM_PICTURES, draw, tf.float32, [1]))


def _drawn(data, num_images, draw, label_type, label_shape):
    """Sources of generated images. `draw(split, number)` returns an encoded image and its label."""
    total = num_images["train"]
    num_train = total - round(data.validation_fraction * total)
    ranges = {"train": (0, num_train), "validation": (num_train, total), "test": (0, num_images["test"])}

    def source(split, first, end):
        base_split = "test" if split == "test" else "train"

        def read(index):
            image, label = tf.numpy_function(
                lambda number: draw(base_split, int(number)), [index + first], [tf.string, label_type], stateful=False
            )
            return {"image": tf.ensure_shape(image, []), "label": tf.ensure_shape(label, label_shape)}

        return IndexedSource(end - first, read)

    return {name: source(name, first, end) for name, (first, end) in ranges.items() if first < end}


def _load_records(data, record):
    dataset = read_records(data.directory, data.shuffle_buffer)
    if record is not None:
        record.refuse_tests_on_seen_shards(dataset.contents)
    return dataset
