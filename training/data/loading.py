"""Loads the data set of a recipe: its classes, and the source of each split."""

import dataclasses

import tensorflow as tf

from training.data.contents import change_lines
from training.data.dataset import Dataset
from training.data.images import IntactFiles
from training.data.sets import shapes
from training.data.sets.folder import read_folder
from training.data.sets.mask_folder import read_mask_folder
from training.data.sets.records import read_records
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
    if data.dataset == "shapes":
        raise InputError("data.dataset=shapes has masks, but no class labels. Choose the recipe shapes_vt_fpn.")
    load = {"folder": _load_folder, "records": _load_records}.get(data.dataset, load_tfds)
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


def _file_sources(folder, read_label):
    def source(pairs):
        paths, labels = map(tf.constant, zip(*pairs, strict=True))
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
    total = shapes.NUM_IMAGES["train"]
    num_train = total - round(data.validation_fraction * total)
    ranges = {"train": (0, num_train), "validation": (num_train, total), "test": (0, shapes.NUM_IMAGES["test"])}

    def source(split, first, end):
        base_split = "test" if split == "test" else "train"

        def read(index):
            drawn = tf.numpy_function(
                lambda number: shapes.encoded(base_split, int(number)), [index + first], [tf.string] * 2, stateful=False
            )
            image, mask = (tf.ensure_shape(content, []) for content in drawn)
            return {"image": image, "label": mask}

        return IndexedSource(end - first, read)

    splits = {name: source(name, first, end) for name, (first, end) in ranges.items() if first < end}
    return Dataset(shapes.CLASS_NAMES, splits)


def _load_records(data, record):
    dataset = read_records(data.directory, data.shuffle_buffer)
    if record is not None:
        record.refuse_tests_on_seen_shards(dataset.contents)
    return dataset
