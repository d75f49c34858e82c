"""Labels of classification."""

import tensorflow as tf


def multi_hot(label, num_classes):
    """(classes,): 1 for the right class, or for each of several.

    Args:
        label: The index of the right class, a scalar, or the indices of all right classes, (n,).
        num_classes: How many classes there are.
    """
    one_hot = tf.one_hot(label, num_classes)
    return one_hot if label.shape.rank == 0 else tf.minimum(tf.reduce_sum(one_hot, axis=0), 1.0)
