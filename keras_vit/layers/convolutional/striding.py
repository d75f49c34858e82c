"""Strides without a convolution."""


def strided(maps, strides):
    """The places of (B, H, W, C) that a kernel of one pixel sees with `strides`, and whence attention asks.

    A convolution of such a kernel is given them alone: in the gradient of one that has strides itself, TensorFlow 2.21
    writes beyond its memory on CPUs.
    """
    return maps if strides == 1 else maps[:, ::strides, ::strides]


def strided_shape(input_shape, strides, filters):
    """The shape of what is put out with `strides` for maps of a shape (B, H, W, C)."""
    sizes = (size and -(-size // strides) for size in input_shape[1:3])
    return (input_shape[0], *sizes, filters)
