"""Base class of SAN's self-attentions. Shapes: B batch, H W C map, F output channels, N pixels in a window."""

import typing

from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.parts import build_dense
from keras_vit.layers.ops.maps import check_window_size, local_windows

SHARED_CHANNELS = 8
"""Number of channels that share their weights ("Exploring Self-Attention for Image Recognition", section 4)."""


class VectorSelfAttention(BaseLayer):
    """A layer that computes, for each pixel, a weighted sum of the pixels in the window around it.

    Subclasses compute F / 8 weights for each pixel of a window. The channels c, c + F / 8, c + 2 F / 8 and so on share
    their weights. The map is padded by reflection.

    Args:
        filters: Number F of output channels, a multiple of 8.
        window_size: Side of a window in pixels, odd.
    """

    def __init__(self, filters: int, window_size: int = 7, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive_integer("filters", filters)
        self.window_size = check_window_size(window_size)
        if filters % SHARED_CHANNELS:
            raise ValueError(f"filters must be a multiple of {SHARED_CHANNELS}. Received: {filters}")
        self.num_weights = filters // SHARED_CHANNELS

    def build(self, input_shape):
        self._check_size(input_shape)
        self.relation_dim = max(1, input_shape[-1] // 16)
        self.centre = build_dense(self, "centre", input_shape[-1], self.relation_dim, use_bias=True)
        self.neighbour = build_dense(self, "neighbour", input_shape[-1], self.relation_dim, use_bias=True)
        self.value = build_dense(self, "value", input_shape[-1], self.filters, use_bias=True)

    def _check_size(self, shape):
        if any(size is not None and size <= self.window_size // 2 for size in shape[1:3]):
            raise ValueError(
                f"Maps are padded by reflection for windows of {self.window_size} pixels, so height and width must be "
                f"more than {self.window_size // 2}. Received: maps of shape {tuple(shape)}"
            )

    def _windows(self, maps):
        """Returns the window around each pixel, (B, H, W, N, C)."""
        self._check_size(maps.shape)  # In a model of variable image size, H and W are unknown in `build`.
        return local_windows(maps, self.window_size, padding="reflect")

    def _aggregate(self, maps, weights):
        """Computes weighted sums (B, H, W, F) of maps with weights (B, H, W, N, F / 8)."""
        values = self._windows(self.value(maps))
        values = ops.reshape(values, (*ops.shape(values)[:-1], SHARED_CHANNELS, self.num_weights))
        outputs = ops.sum(weights[..., None, :] * values, axis=3)
        return ops.reshape(outputs, (*ops.shape(outputs)[:3], self.filters))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.filters)

    def _aggregating_macs(self, input_shape):
        """Multiply-accumulates of the linear projections and of `_aggregate` for one pixel."""
        return input_shape[-1] * (2 * self.relation_dim + self.filters) + self.window_size**2 * self.filters
