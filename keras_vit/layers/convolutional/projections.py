"""Parts of layers: projections of the channels of pixels or tokens."""

import keras

from keras_vit.layers.convolutional.pointwise_convolution import PointwiseConvolution


def num_groups_of(channels, group_width):
    """Number of groups of so many channels, at least one; `None`: one group."""
    if group_width is None or group_width >= channels:
        return 1
    if channels % group_width:
        raise ValueError(f"group_width must divide the {channels} channels. Received: group_width={group_width}")
    return channels // group_width


def built_projection(layer, name, channels, filters, num_groups=1):
    """A `PointwiseConvolution` for C channels as part of a layer, which says whether a batch norm follows."""
    projection = PointwiseConvolution(filters, num_groups, layer.use_batch_norm, **layer.part_arguments(name))
    projection.build((None, None, channels))
    return projection


def built_dense(layer, name, channels, filters, use_bias=False):
    """A `keras.layers.Dense` from C channels to others, with the precision of the layer that it is part of."""
    dense = keras.layers.Dense(filters, use_bias=use_bias, **layer.part_arguments(name))
    dense.build((None, channels))
    return dense
