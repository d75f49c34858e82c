"""Parts of other layers."""

import keras


def batch_norm(**arguments):
    """Creates a batch norm with PyTorch's epsilon and momentum. PyTorch's momentum of 0.1 is 0.9 in Keras."""
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, **arguments)


def build_dense(layer, name, channels, filters, use_bias=False):
    """Builds a `keras.layers.Dense` as part of `layer`."""
    return layer.build_part(keras.layers.Dense, name, (None, channels), filters, use_bias=use_bias)


def build_in_turn(layers, input_shape):
    """Builds layers that are called one after the other, the first for inputs of `input_shape`."""
    for layer in layers:
        layer.build(input_shape)
        input_shape = layer.compute_output_shape(input_shape)


def macs_in_turn(convs, input_shape):
    """Multiply-accumulates of convolutions that are called one after the other, for one image."""
    total = 0
    for conv in convs:
        total += conv.macs(input_shape)
        input_shape = conv.compute_output_shape(input_shape)
    return total
