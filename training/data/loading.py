"""Loads the data set of a recipe: its classes, and the source of each split."""

import dataclasses

import tensorflow as tf

from training.data.dataset import Dataset
from training.data.sets import shapes
from training.data.sets.folder import read_folder
from training.data.sets.mask_folder import read_mask_folder
from training.data.sets.records import read_records
from training.data.sets.tfds import load_tfds
from training.data.sources import IndexedSource
from training.errors import InputError


def load_dataset(data, disjoint=True):
    """Loads the data set that `training.recipe.config.Data` describes.

    Args:
        data: `training.recipe.config.Data`
        disjoint: Whether to refuse images that are in two splits, for training on one and testing on another.

    Returns:
        A `Dataset`.

    Raises:
        InputError: If the data set is unavailable, or an image is in two splits. The message describes what to do.
    """
    if data.dataset == "shapes":
        raise InputError("data.dataset=shapes has masks and no labels. Choose the recipe shapes_vt_fpn.")
    load = {"folder": _load_folder, "records": _load_records}.get(data.dataset, load_tfds)
    return _finish(load(data), data, disjoint)


def load_masks(data, disjoint=True):
    """Same as `load_dataset`, for segmentation. The labels are encoded masks."""
    load = {"folder": _load_mask_folder, "shapes": _load_shapes}.get(data.dataset)
    if load is None and data.mask is None:
        raise InputError(
            f"data.dataset={data.dataset} has no masks to learn. Choose shapes, folder, or a data set of TFDS and "
            f"the feature that is its mask, such as data.mask=segmentation_mask"
        )
    return _finish((load or load_tfds)(data), data, disjoint)


def _finish(dataset, data, disjoint):
    """Checks a data set, and reduces its training images to `data.train_images`."""
    if disjoint and dataset.overlap:
        raise InputError(dataset.overlap)
    if data.train_images is None:
        return dataset
    source = dataset.source("train")
    if data.train_images > source.size:
        raise InputError(
            f"data.train_images={data.train_images}, but {data.dataset} has {source.size:,} images for training. "
            f"Choose fewer, or data.train_images=none for all of them."
        )
    drawn = source.draw(data.train_images, data.train_images_seed)
    return dataclasses.replace(dataset, splits=dataset.splits | {"train": drawn})


def _load_folder(data):
    folder = read_folder(data.directory, data.test_fraction, data.validation_fraction)
    _print_skipped(folder)
    splits = {name: _files(images) for name, images in folder.splits.items() if images}
    if "test" not in splits:
        raise InputError(
            f"{data.directory} has no test images, and too few images to hold any out: {splits['train'].size} in "
            f"{len(folder.class_names)} classes. Add images, at least two in a class, or raise data.test_fraction."
        )
    return Dataset(folder.class_names, splits, folder.overlap)


def _print_skipped(folder):
    for path, problem in folder.skipped.items():
        print(f"Skipped {path}: {problem}")
    if folder.skipped:
        print(f"Skipped {len(folder.skipped)} in total.")


def _files(images):
    paths, labels = map(tf.constant, zip(*images, strict=True))
    return IndexedSource(
        len(images), lambda index: {"image": tf.io.read_file(paths[index]), "label": tf.cast(labels[index], tf.int64)}
    )


def _load_mask_folder(data):
    folder = read_mask_folder(data.directory, data.test_fraction, data.validation_fraction)
    _print_skipped(folder)
    if not folder.splits["test"]:
        raise InputError(
            f"{data.directory} has too few images to hold any out for the test: {len(folder.splits['train'])}. Add "
            f"images, or raise data.test_fraction."
        )
    splits = {name: _file_pairs(pairs) for name, pairs in folder.splits.items() if pairs}
    return Dataset(folder.class_names, splits, folder.overlap)


def _file_pairs(pairs):
    images, masks = map(tf.constant, zip(*pairs, strict=True))
    return IndexedSource(
        len(pairs), lambda index: {"image": tf.io.read_file(images[index]), "label": tf.io.read_file(masks[index])}
    )


def _load_shapes(data):
    total = shapes.NUM_IMAGES["train"]
    kept = round(data.validation_fraction * total)
    ranges = {"train": (0, total - kept), "validation": (total - kept, total), "test": (0, shapes.NUM_IMAGES["test"])}
    splits = {name: _drawn_shapes(name, *numbers) for name, numbers in ranges.items() if numbers[0] < numbers[1]}
    return Dataset(shapes.CLASS_NAMES, splits)


def _drawn_shapes(split, first, end):
    base_split = "test" if split == "test" else "train"

    def read(index):
        drawn = tf.numpy_function(
            lambda number: shapes.encoded(base_split, int(number)), [index + first], [tf.string] * 2, stateful=False
        )
        image, mask = (tf.ensure_shape(content, []) for content in drawn)
        return {"image": image, "label": mask}

    return IndexedSource(end - first, read)


def _load_records(data):
    class_names, splits = read_records(data.directory, data.shuffle_buffer)
    return Dataset(class_names, splits)
