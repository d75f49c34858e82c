"""Subsets of a split, chosen by label before images are decoded. Shapes: N images."""

import numpy as np
import tensorflow as tf

from training.data.sources import IndexedSource, StreamedSource
from training.errors import InputError

_ROWS = 4096  # Number of labels that are read at a time.


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
    """A source of selected examples. The returned source must be read in order, by one process.

    Args:
        source: A source of `training.data.sources`.
        indices: Indices of the examples, integers in ascending order.
    """
    indices = tf.constant(indices, tf.int64)
    if isinstance(source, IndexedSource):
        return IndexedSource(len(indices), lambda index: source.read(indices[index]))
    is_chosen = tf.scatter_nd(indices[:, None], tf.ones(len(indices), tf.bool), [source.size])

    def stream(ranges, seed):
        if seed is not None or list(ranges) != [(0, len(indices))]:
            raise ValueError("A selection of a stream must be read as a whole, in its order.")
        examples = source.stream([(0, source.size)], None).enumerate()
        return examples.filter(lambda index, _: is_chosen[index]).map(lambda _, example: example)

    return StreamedSource(len(indices), stream, source.shuffle_buffer)
