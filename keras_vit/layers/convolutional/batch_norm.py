"""Batch norms as in the papers' code."""

import keras


def batch_norm(**arguments):
    """Batch norm with PyTorch's epsilon and momentum: a tenth of every batch goes into the moving statistics."""
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, **arguments)
