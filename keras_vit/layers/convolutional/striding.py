"""Strides without a convolution."""


def strided(maps, strides):
    """Returns every `strides`-th row and column of maps (B, H, W, C).

    A 1 x 1 convolution with strides equals a matrix product of these pixels and the kernel. Layers use the product,
    because TensorFlow 2.21 on CPUs writes out of bounds in the gradient of the convolution.
    """
    return maps if strides == 1 else maps[:, ::strides, ::strides]


def strided_shape(input_shape, strides, filters):
    """Returns the output shape of a layer with `strides` and `filters`, for maps of shape (B, H, W, C)."""
    sizes = (size and -(-size // strides) for size in input_shape[1:3])
    return (input_shape[0], *sizes, filters)
