"""Loads the data set of a recipe: its classes, and the source of each split."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit.data.folder import read_file
from training.data.contents import change_lines
from training.data.dataset import Dataset
from training.data.images import IntactFiles
from training.data.masks import MAX_CLASSES, encode_png
from training.data.samples import pad_segments
from training.data.sets import digits, drawn_pairs, scenes, shapes
from training.data.sets.archives import read_archives
from training.data.sets.coco import read_captions, read_coco
from training.data.sets.depth_folder import read_depth, read_depth_folder
from training.data.sets.folder import read_folder
from training.data.sets.mask_folder import read_mask_folder
from training.data.sets.records import TYPES, read_records
from training.data.sets.table import ANNOTATIONS, read_image_table
from training.data.sets.tfds import load_tfds
from training.data.sources import IndexedSource
from training.data.subsets import multi_hot, with_classes, with_names
from training.errors import InputError


def load_dataset(data, annotation="label", disjoint=True, record=None):
    """Loads the data set that `training.recipe.config.Data` describes.

    Args:
        data: `training.recipe.config.Data`
        annotation: What is loaded besides the images, an annotation of `training.data.samples`.
        disjoint: Whether to raise an error if an image is in two splits. Must be `True` if a model is trained on one
            split and tested on another.
        record: `training.data.contents.Record` of the run that trained the model. Images that this run had are in the
            splits in which it had them. Differences are printed.

    Returns:
        A `Dataset`.

    Raises:
        InputError: If the data set is unavailable or has no such annotations, or an image is in two splits, or test
            images were training images of the run. The message suggests a remedy.
    """
    loaders = _LOADERS.get(data.dataset) or _tfds_loaders(data)
    if annotation not in loaders:
        found, missing = " or ".join(_TITLES.get(name, name) for name in loaders), _TITLES.get(annotation, annotation)
        others = [name for name, its_loaders in _LOADERS.items() if annotation in its_loaders]
        if annotation == "label":
            others.append("the name of a data set of TFDS")
        elif annotation in ("mask", "depth"):
            others.append(f"a data set of TFDS with data.{annotation}=<feature that contains its {missing}>")
        raise InputError(
            f"data.dataset={data.dataset} has {found}, but no {missing}. Choose a recipe for {found}, or "
            f"one of these data sets: {', '.join(others)}"
        )
    return _finish(loaders[annotation](data, record), data, annotation, disjoint, record)


def _finish(dataset, data, annotation, disjoint, record):
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
        choose = with_classes if annotation == "label" else functools.partial(with_names, annotation)
        dataset = choose(dataset, data.classes)
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
    folder = _restored(read_folder(*_where(data)), data, record)
    no_test_split = (
        f"{data.directory} has no test images, and too few images for a test split: {len(folder.items)} in "
        f"{len(folder.class_names)} classes. Copies of a file count as one image. Add images, or raise "
        f"data.test_fraction."
    )
    return _from_files(folder, data, no_test_split, _read_class)


def _where(data):
    return data.directory, data.test_fraction, data.validation_fraction


def _restored(folder, data, record):
    """Prints what was found in files, and restores the splits of a run."""
    for path, problem in folder.skipped.items():
        print(f"Skipped {path}: {problem}")
    if folder.skipped:
        print(f"Skipped {len(folder.skipped)} in total.")
    if record is not None:
        folder = folder.consistent_with(record)
    for note in folder.notes:
        print(note)
    if data.max_failures and record is not None and record.purpose == "resume":
        return folder.completed(record.contents, data.max_failures)
    return folder


def _load_table(read, annotation, data, record):
    table = _restored(read(annotation, data), data, record)
    remedy = " with the split test" if table.has_split_folders else ", or raise data.test_fraction"
    no_test_split = f"{data.directory} has no test images. Add images{remedy}."
    num_labels = len(table.class_names)
    readings = {
        "label": (_read_class, tf.constant),
        "labels": (
            (lambda indices: {"labels": multi_hot(indices, num_labels) > 0}),
            lambda rows: tf.ragged.constant(rows, tf.int64),
        ),
        "values": ((lambda row: {"values": row}), lambda rows: tf.constant(rows, tf.float32)),
        "text": ((lambda text: {"text": text}), tf.constant),
    }
    if annotation == "text":
        return _with_each_text(table, lambda splits: _from_files(splits, data, no_test_split, *readings["text"]))
    return _from_files(table, data, no_test_split, *readings[annotation])


def _with_each_text(table, load):
    """A data set in which each text of an image is an example. In validation, an image has only its first text.

    The validation compares all pairs of a batch, and would count equal images as different ones.
    """
    splits = {
        name: [(path, text) for path, texts in pairs for text in (texts[:1] if name == "validation" else texts)]
        for name, pairs in table.splits.items()
    }
    examples = load(dataclasses.replace(table, splits=splits))
    texts = [text for _, text in splits.get("train", ())]
    return dataclasses.replace(examples, list_contents=lambda: table.contents, list_texts=lambda: texts)


def _load_mask_folder(data, record):
    folder = _restored(read_mask_folder(*_where(data)), data, record)
    return _from_files(folder, data, _too_few(folder, data), lambda path: {"mask": tf.io.read_file(path)})


def _too_few(folder, data):
    return (
        f"{data.directory} has too few images for a test split: {len(folder.items)}. Add images, or raise "
        f"data.test_fraction."
    )


def _load_depth_folder(data, record):
    folder = _restored(
        read_depth_folder(data.directory, data.test_fraction, data.validation_fraction, data.depth_scale), data, record
    )
    pixels = {"depth": tf.TensorSpec([None, None, 1], tf.float32)}
    read = _python_reader(lambda path: [read_depth(path.decode(), data.depth_scale)], pixels)
    dataset = _from_files(folder, data, _too_few(folder, data), read)
    return dataclasses.replace(dataset, units=("metres",))


def _load_coco(annotation, data, record):
    folder, objects, is_thing = read_coco(data)
    if annotation == "mask" and len(folder.class_names) > MAX_CLASSES:
        raise InputError(
            f"A mask has at most {MAX_CLASSES} classes, but {data.directory} has {len(folder.class_names)} categories."
        )
    folder = _restored(folder, data, record)
    if annotation == "mask":
        specs = {"mask": tf.TensorSpec([None, None, 1], tf.uint8)}
        read = _python_reader(lambda index: [objects[index].mask()], specs)
        return _from_files(folder, data, _too_few(folder, data), read)
    specs = {"segments": tf.TensorSpec([None, None, 1], tf.int32), "segment_classes": tf.TensorSpec([None], tf.int64)}
    read_segments = _python_reader(lambda index: objects[index].segments(), specs)
    most = max(len(each.classes) for each in objects if each is not None)
    dataset = _from_files(folder, data, _too_few(folder, data), lambda index: pad_segments(read_segments(index), most))
    return dataclasses.replace(dataset, is_thing=is_thing)


def _python_reader(read, specs):
    """A TensorFlow function that calls a Python function.

    Args:
        read: Function of a number or bytes that returns a list of arrays.
        specs: {annotation: `tf.TensorSpec`} of the arrays.
    """

    def read_annotations(label):
        arrays = tf.numpy_function(read, [label], [spec.dtype for spec in specs.values()], stateful=False)
        pairs = zip(specs.items(), tf.nest.flatten(arrays), strict=True)
        return {name: tf.ensure_shape(array, spec.shape) for (name, spec), array in pairs}

    return read_annotations


def _from_files(folder, data, no_test_split, read_annotations, as_tensor=tf.constant):
    """The `Dataset` of the files of a `FolderSplits`.

    Args:
        folder: `training.data.sets.splitting.FolderSplits`
        data: `training.recipe.config.Data`
        no_test_split: Message for a data set without a test split.
        read_annotations: TensorFlow function of an element of `as_tensor(labels)` that returns {annotation: tensor}.
        as_tensor: Function that converts the labels of a split.
    """

    def reader(split, paths):
        """A TensorFlow function of an index. It returns the contents of a file and the index of its label."""
        if split == "train" and data.max_failures:
            return IntactFiles(paths, [folder.items[path] for path in paths], data.max_failures, folder.read).read
        if folder.read is read_file:
            names = tf.constant(paths)
            return lambda index: (tf.io.read_file(names[index]), index)
        files = list(map(pathlib.Path, paths))

        def read(index):
            content = tf.numpy_function(lambda number: folder.read(files[number]), [index], tf.string, stateful=False)
            return tf.ensure_shape(content, []), index

        return read

    def source(split, pairs):
        paths, labels = zip(*pairs, strict=True)
        labels, read_content = as_tensor(labels), reader(split, paths)

        def read(index):
            content, index = read_content(index)
            return {"image": content, **read_annotations(labels[index])}

        return IndexedSource(len(pairs), read)

    splits = {split: source(split, pairs) for split, pairs in folder.splits.items() if pairs}
    return Dataset(folder.class_names, splits, lambda: folder.overlap, lambda: folder.contents, no_test_split)


def _read_class(label):
    return {"label": tf.cast(label, tf.int64)}


def _load_shapes(data, record):
    specs = {"mask": tf.TensorSpec([], tf.string)}
    return Dataset(shapes.CLASS_NAMES, _drawn(data, shapes.NUM_IMAGES, shapes.encoded, specs))


def _load_scenes(names, data, record):
    """Loads scenes with the named annotations, of which the first one decides what the classes are."""
    _, example = scenes.draw("train", 0)
    specs = {name: tf.TensorSpec(example[name].shape, example[name].dtype) for name in names}

    def draw(split, number):
        image, annotations = scenes.draw(split, number)
        return encode_png(image), *(annotations[name] for name in names)

    class_names = {"mask": ("background", *scenes.KINDS), "depth": ("depth",)}.get(names[0], scenes.KINDS)
    splits = _drawn(data, scenes.NUM_IMAGES, draw, specs)
    return Dataset(class_names, splits, units=("metres",) if names[0] == "depth" else None)


def _load_digit_sets(data, record):
    def draw(split, number):
        image, drawn = digits.draw_triple(split, number)
        return encode_png(image[..., 0]), np.isin(np.arange(10), drawn)

    specs = {"labels": tf.TensorSpec([10], tf.bool)}
    return Dataset(tuple(map(str, range(10))), _drawn(data, digits.NUM_PICTURES, draw, specs))


def _load_digit_sums(data, record):
    def draw(split, number):
        image, drawn = digits.draw_triple(split, number)
        return encode_png(image[..., 0]), np.array([drawn.sum()], "float32")

    specs = {"values": tf.TensorSpec([1], tf.float32)}
    return Dataset(("sum",), _drawn(data, digits.NUM_PICTURES, draw, specs))


def _load_drawn_pairs(data, record):
    def draw(split, number):
        image, text = drawn_pairs.draw(split, number)
        return encode_png(image), np.array(text.encode(), object)

    splits = _drawn(data, drawn_pairs.NUM_PAIRS, draw, {"text": tf.TensorSpec([], tf.string)})
    list_texts = lambda: [drawn_pairs.draw("train", number)[1] for number in range(splits["train"].size)]  # noqa: E731
    return Dataset(("text",), splits, list_texts=list_texts)


def _drawn(data, num_images, draw, specs):
    """Sources of generated images. `draw(split, number)` returns an encoded image and its annotations.

    `specs` is {annotation: `tf.TensorSpec`}, in the order of the annotations.
    """
    specs = {"image": tf.TensorSpec([], tf.string), **specs}
    total = num_images["train"]
    num_train = total - round(data.validation_fraction * total)
    ranges = {"train": (0, num_train), "validation": (num_train, total), "test": (0, num_images["test"])}

    def source(split, first, end):
        base_split = "test" if split == "test" else "train"
        read = _python_reader(lambda number: draw(base_split, int(number)), specs)
        return IndexedSource(end - first, lambda index: read(index + first))

    return {name: source(name, first, end) for name, (first, end) in ranges.items() if first < end}


def _load_records(annotation, data, record):
    dataset = read_records(data.directory, data.shuffle_buffer, annotation)
    if record is not None:
        record.refuse_tests_on_seen_shards(dataset.contents)
    return dataset


def _tfds_loaders(data):
    names = [name for name in ("mask", "depth") if getattr(data, name) is not None] or ["label"]
    return {name: functools.partial(load_tfds, name) for name in names}


_TITLES = {"label": "classes", "mask": "masks", "text": "texts"}  # Others are titles themselves.
_LOADERS: dict[str, dict[str, Callable]] = {
    "archives": {name: functools.partial(_load_table, read_archives, name) for name in ANNOTATIONS},
    "coco": {
        **{name: functools.partial(_load_coco, name) for name in ("mask", "segments")},
        "text": functools.partial(_load_table, read_captions, "text"),
    },
    "digits": {"label": functools.partial(load_tfds, "label")},
    "folder": {"label": _load_folder, "mask": _load_mask_folder, "depth": _load_depth_folder},
    "records": {name: functools.partial(_load_records, name) for name in TYPES},
    "table": {name: functools.partial(_load_table, read_image_table, name) for name in ANNOTATIONS},
    "scenes": {
        "mask": functools.partial(_load_scenes, ["mask"]),
        "segments": functools.partial(_load_scenes, ["segments", "segment_classes"]),
        "depth": functools.partial(_load_scenes, ["depth"]),
        "boxes": functools.partial(_load_scenes, ["boxes", "box_classes", "is_box"]),
    },
    "shapes": {"mask": _load_shapes},
    "drawn_pairs": {"text": _load_drawn_pairs},
    "digit_sets": {"labels": _load_digit_sets},
    "digit_sums": {"values": _load_digit_sums},
}
"""{value of `data.dataset`: {annotation: function that loads the data set}}. Other data sets are those of TFDS."""
