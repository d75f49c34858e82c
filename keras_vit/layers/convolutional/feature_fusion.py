"""Feature fusion of DPT. Shapes: B batch, h w map, H W fused map, F features."""

import functools
import typing

import keras
from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.resizing import resize_bilinear


def small_kernel():
    """The initial values of kernels in the owners' code, those of PyTorch's layers.

    Their variance is a third of the usual one, so the residual branches of a new head are small, and its outputs do not
    saturate an activation.
    """
    return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


@keras.saving.register_keras_serializable(package="keras_vit")
class FeatureFusion(BaseLayer):
    """Adds a map to a coarser state, refines the sum and enlarges it (DPT, arXiv 2103.13413, section 3 and figure 1).

    `state + RCU(map)`, then a second RCU, bilinear resizing with aligned corners, and a 1 x 1 convolution. A residual
    convolutional unit is `RCU(x) = x + conv(ReLU(conv(ReLU(x))))` with 3 x 3 convolutions. If the map and the state
    differ in size, the map is resized first.

    Args:
        features: Number F of channels.
        use_bias: Whether the 3 x 3 convolutions have biases.
        is_first: Whether the layer has no second input, as the fusion of the coarsest map.

    Call arguments:
        state: (B, h, w, F), channels last.
        maps: Map of about the same size, with F channels. `None` if `is_first`.
        size: (H, W), integers or tensors. `None`: (2 h, 2 w).

    Returns:
        (B, H, W, F)

    Example:

    >>> import keras, keras_vit
    >>> maps = keras.ops.ones((2, 3, 4, 5))
    >>> tuple(keras_vit.layers.FeatureFusion(features=5)(maps, maps).shape)
    (2, 6, 8, 5)
    """

    def __init__(self, features: int, use_bias: bool = True, is_first: bool = False, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.features = check_positive_integer("features", features)
        self.use_bias = check_flag("use_bias", use_bias)
        self.is_first = check_flag("is_first", is_first)

    def build(self, state_shape, maps_shape=None):
        shape = (None, None, None, self.features)
        options = {"kernel_size": 3, "padding": "same", "data_format": "channels_last", "use_bias": self.use_bias}
        options |= {"input_shape": shape, "filters": self.features, "kernel_initializer": small_kernel()}
        conv = functools.partial(self.build_part, keras.layers.Conv2D, **options)
        first = () if self.is_first else (conv(name="residual_conv_0"), conv(name="residual_conv_1"))
        self.residual_convs = list(first)
        self.convs = [conv(name="conv_0"), conv(name="conv_1")]
        self.projection = self.build_part(
            keras.layers.Dense, "projection", shape, self.features, kernel_initializer=small_kernel()
        )

    def call(self, state, maps=None, size=None):
        if not self.is_first:
            state_size = ops.shape(state)[1:3]
            if tuple(maps.shape[1:3]) != tuple(state_size):
                maps = resize_bilinear(maps, state_size)
            state = state + _residual_unit(self.residual_convs, maps)
        state = _residual_unit(self.convs, state)
        size = [2 * side for side in ops.shape(state)[1:3]] if size is None else size
        # A 1 x 1 convolution and the interpolation can be exchanged, because the weights of the interpolation sum to 1.
        # Before the interpolation, the convolution has fewer pixels.
        return resize_bilinear(self.projection(state), size, align_corners=True)

    def compute_output_shape(self, state_shape, maps_shape=None):
        return (state_shape[0], *(side and 2 * side for side in state_shape[1:3]), self.features)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, h, w, F)."""
        _, height, width, features = input_shape
        num_convs = len(self.residual_convs) + len(self.convs)
        return height * width * features**2 * (9 * num_convs + 1)


def _residual_unit(convs, maps):
    branch = maps
    for conv in convs:
        branch = conv(ops.relu(branch))
    return maps + branch
