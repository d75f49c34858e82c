"""Batch norm with PyTorch's defaults."""

import keras


def batch_norm(**arguments):
    """Creates a batch norm with PyTorch's epsilon and momentum. PyTorch's momentum of 0.1 is 0.9 in Keras."""
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, **arguments)
