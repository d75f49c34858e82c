"""Labels of classification."""

import tensorflow as tf


def multi_hot(label, num_classes):
    """Encodes a label as a vector (classes,): 1 for each right class, 0 for all other classes.

    Args:
        label: Index of the right class, a scalar, or the indices of all n right classes, (n,).
        num_classes: Number of classes.
    """
    one_hot = tf.one_hot(label, num_classes)
    return one_hot if label.shape.rank == 0 else tf.minimum(tf.reduce_sum(one_hot, axis=0), 1.0)
