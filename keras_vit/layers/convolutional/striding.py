"""Strides without a convolution."""


def strided(maps, strides):
    """Every `strides`-th row and column of maps (B, H, W, C).

    A 1 x 1 convolution with strides is a product with these pixels. On CPUs, TensorFlow 2.21 writes out of bounds in
    the gradient of such a convolution.
    """
    return maps if strides == 1 else maps[:, ::strides, ::strides]


def strided_shape(input_shape, strides, filters):
    """The output shape of a layer with `strides` and `filters`, for maps of shape (B, H, W, C)."""
    sizes = (size and -(-size // strides) for size in input_shape[1:3])
    return (input_shape[0], *sizes, filters)
