"""Builds the projections of pixels or tokens that other layers contain."""

import keras

from keras_vit.layers.convolutional.pointwise_convolution import PointwiseConvolution


def num_groups_of(channels, group_width):
    """Returns the number of groups of `group_width` channels. A width of `None` or >= `channels` gives one group."""
    if group_width is None or group_width >= channels:
        return 1
    if channels % group_width:
        raise ValueError(f"group_width must divide the {channels} channels. Received: group_width={group_width}")
    return channels // group_width


def build_projection(layer, name, channels, filters, num_groups=1):
    """Builds a `PointwiseConvolution` as part of `layer`, with a batch norm if `layer.use_batch_norm` is `True`."""
    projection = PointwiseConvolution(filters, num_groups, layer.use_batch_norm, **layer.part_arguments(name))
    projection.build((None, None, channels))
    return projection


def build_dense(layer, name, channels, filters, use_bias=False):
    """Builds a `keras.layers.Dense` as part of `layer`."""
    dense = keras.layers.Dense(filters, use_bias=use_bias, **layer.part_arguments(name))
    dense.build((None, channels))
    return dense
