"""Keras layers as parts of other layers."""

import keras


def batch_norm(**arguments):
    """Creates a batch norm with PyTorch's epsilon and momentum. PyTorch's momentum of 0.1 is 0.9 in Keras."""
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, **arguments)


def build_dense(layer, name, channels, filters, use_bias=False):
    """Builds a `keras.layers.Dense` as part of `layer`."""
    dense = keras.layers.Dense(filters, use_bias=use_bias, **layer.part_arguments(name))
    dense.build((None, channels))
    return dense
