"""Labels of classification, and subsets of a split that are chosen by label. Shapes: N images."""

import dataclasses
import textwrap

import numpy as np
import tensorflow as tf

from keras_vit.checks import did_you_mean
from training.data.sources import IndexedSource, StreamedSource
from training.errors import InputError

_ROWS = 4096  # Number of labels that are read at a time.


def multi_hot(label, num_classes):
    """Encodes a label as a vector (classes,): 1 for each right class, 0 for all other classes.

    Args:
        label: Index of the right class, a scalar, or the indices of all n right classes, (n,).
        num_classes: Number of classes.
    """
    one_hot = tf.one_hot(label, num_classes)
    return one_hot if label.shape.rank == 0 else tf.minimum(tf.reduce_sum(one_hot, axis=0), 1.0)


def read_labels(source, description):
    """Reads the class of each example of a source, in order: int64 (N,).

    Args:
        source: A source of `training.data.sources`.
        description: Description of the source, for the error message.

    Raises:
        InputError: If the images may have several right classes, or none.
    """
    labels = source.in_order().map(lambda example: example["label"], tf.data.AUTOTUNE)
    if labels.element_spec.shape.rank != 0:
        raise InputError(f"The images of {description} may have several right classes, or none. Each image needs one.")
    return np.concatenate(list(labels.batch(_ROWS).as_numpy_iterator()))


def select(source, indices):
    """A source of selected examples. A stream is read from its beginning, and its files are not shuffled.

    Args:
        source: A source of `training.data.sources`.
        indices: Indices of the examples, integers in ascending order.
    """
    indices = tf.constant(indices, tf.int64)
    if isinstance(source, IndexedSource):
        return IndexedSource(len(indices), lambda index: source.read(indices[index]))

    def stream(ranges, _):
        chosen = tf.concat([indices[first:end] for first, end in ranges], axis=0)
        is_chosen = tf.scatter_nd(chosen[:, None], tf.ones_like(chosen, tf.bool), [source.size])
        examples = source.stream([(0, source.size)], None).enumerate()
        return examples.filter(lambda index, _: is_chosen[index]).map(lambda _, example: example)

    return StreamedSource(len(indices), stream, source.shuffle_buffer)


def with_classes(dataset, names):
    """Keeps the images of some classes of a data set. The classes stay in their order.

    Args:
        dataset: `training.data.dataset.Dataset` with one class per image.
        names: Names of at least two classes.

    Raises:
        InputError: If there is no such class, or a split has no image of these classes.
    """
    if unknown := [name for name in names if name not in dataset.class_names]:
        suggestion = did_you_mean(unknown[0], dataset.class_names)
        known = textwrap.shorten(", ".join(dataset.class_names), 300)
        raise InputError(f"data.classes: there is no class {unknown[0]!r}.{suggestion} Classes: {known}")
    if len(set(names)) < 2:
        raise InputError(f"data.classes needs at least two different classes. Received: {', '.join(names)}")
    kept = [name in names for name in dataset.class_names]
    new_labels = tf.constant(np.cumsum(kept) - 1, tf.int64)
    splits = {}
    for split, source in dataset.splits.items():
        indices = np.flatnonzero(np.array(kept)[read_labels(source, f"the {split} split")])
        if not len(indices):
            raise InputError(f"The {split} split has no image of data.classes={','.join(names)}.")
        splits[split] = select(source, indices).map(lambda example: example | {"label": new_labels[example["label"]]})
    class_names = tuple(name for name in dataset.class_names if name in names)
    return dataclasses.replace(dataset, class_names=class_names, splits=splits)


def with_names(annotation, dataset, names, are_known=True):
    """Chooses labels or values of a data set, in a given order.

    Args:
        annotation: `"labels"` or `"values"`.
        dataset: `training.data.dataset.Dataset` with this annotation.
        names: Names of labels or values.
        are_known: Whether each name must be in the data set. Otherwise, no image has a label that is missing.

    Raises:
        InputError: If there is no such label or value.
    """
    known = [*dataset.class_names]
    if are_known and (unknown := [name for name in names if name not in known]):
        suggestion = did_you_mean(unknown[0], known)
        shown = textwrap.shorten(", ".join(known), 300)
        raise InputError(f"There is no {annotation[:-1]} {unknown[0]!r}.{suggestion} The data set has: {shown}")
    columns = [known.index(name) if name in known else len(known) for name in names]

    def choose(sample):
        padded = tf.pad(sample[annotation], [[0, 1]])
        return sample | {annotation: tf.gather(padded, columns)}

    splits = {split: source.map(choose) for split, source in dataset.splits.items()}
    return dataclasses.replace(dataset, class_names=tuple(names), splits=splits)
