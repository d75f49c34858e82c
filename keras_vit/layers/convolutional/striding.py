"""Strides without a convolution."""


def strided(maps, strides):
    """Maps (B, H, W, C) with every `strides`-th row and column alone.

    A convolution of one pixel with strides is a product with these. In the gradient of such a convolution TensorFlow
    2.21 writes beyond its memory on CPUs.
    """
    return maps if strides == 1 else maps[:, ::strides, ::strides]


def strided_shape(input_shape, strides, filters):
    """The shape of the output of a layer with `strides` and `filters`, for maps of shape (B, H, W, C)."""
    sizes = (size and -(-size // strides) for size in input_shape[1:3])
    return (input_shape[0], *sizes, filters)
