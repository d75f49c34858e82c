"""Batch norm as in the papers' code."""

import keras


def batch_norm(**arguments):
    """Batch norm with PyTorch's epsilon and momentum (0.1 in PyTorch's definition, which is 0.9 in Keras's)."""
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, **arguments)
