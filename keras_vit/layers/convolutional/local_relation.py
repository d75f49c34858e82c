"""Weighted means of windows.

Shapes: B batch, H W C map, F output channels, G groups of channels, N pixels in a window.
"""

import typing

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.parts import build_dense
from keras_vit.layers.ops.maps import check_window_size, is_inside_map, local_windows, strided, strided_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class LocalRelation(BaseLayer):
    """Computes a weighted mean of the window around each pixel. Pixels similar to the centre get larger weights.

    `y_o = W sum_p softmax_p(-(q_o - k_p)^2 + g(p - o)) x_p` ("Local Relation Networks for Image Recognition", arXiv
    1904.11491, equations 4 and 5, with the squared difference). The sum includes only pixels p of the window that are
    inside the map. Each group of `shared_channels` channels has its own weights, which are computed from scalar queries
    and keys. The last group may have fewer channels. The geometry prior `g` is a network of two layers of width G with
    a ReLU between them. Its inputs are the distances in rows and columns, scaled to [-1, 1]. With strides, only pixels
    in every `strides`-th row and column are queries. The softmax is computed in float32 under any precision policy.

    Args:
        filters: Number F of output channels.
        window_size: Side of a window in pixels, odd.
        strides: Step in pixels, the same for both axes.
        shared_channels: Number of channels that share weights. G is C divided by this number and rounded up.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        (B, h, w, F), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.LocalRelation(filters=12, window_size=3, strides=2, shared_channels=4)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 6))).shape)
    (2, 3, 4, 12)
    """

    def __init__(
        self, filters: int, window_size: int = 7, strides: int = 1, shared_channels: int = 8, **kwargs: typing.Any
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive_integer("filters", filters)
        self.window_size = check_window_size(window_size)
        self.strides = check_positive_integer("strides", strides)
        self.shared_channels = check_positive_integer("shared_channels", shared_channels)

    def build(self, input_shape):
        channels = input_shape[-1]
        self.num_relations = -(-channels // self.shared_channels)
        self.query = build_dense(self, "query", channels, self.num_relations)
        self.key = build_dense(self, "key", channels, self.num_relations)
        self.geometry_1 = build_dense(self, "geometry_1", 2, self.num_relations, use_bias=True)
        # There is no bias, because the softmax would cancel it.
        self.geometry_2 = build_dense(self, "geometry_2", self.num_relations, self.num_relations)
        self.projection = build_dense(self, "projection", channels, self.filters)

    def call(self, maps):
        window = (self.window_size, self.strides)
        queries = self.query(strided(maps, self.strides))
        keys = local_windows(self.key(maps), *window)
        logits = self._geometry_prior() - ops.square(queries[:, :, :, None] - keys)
        logits = ops.where(is_inside_map(maps, *window), ops.cast(logits, "float32"), -1e9)
        weights = ops.cast(ops.softmax(logits, axis=3), maps.dtype)  # (B, h, w, N, G)
        missing = self.num_relations * self.shared_channels - maps.shape[-1]  # Channels, to make all groups equal.
        padded = ops.pad(maps, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else maps
        values = local_windows(padded, *window)
        values = ops.reshape(values, (*ops.shape(values)[:-1], self.num_relations, self.shared_channels))
        means = ops.einsum("bhwng,bhwngs->bhwgs", weights, values)
        means = ops.reshape(means, (*ops.shape(means)[:3], self.num_relations * self.shared_channels))
        return self.projection(means[..., : maps.shape[-1]])

    def _geometry_prior(self):
        """Returns the geometry prior `g` for the pixels of a window, (N, G)."""
        offsets = np.linspace(-1, 1, self.window_size) if self.window_size > 1 else np.zeros(1)
        distances = np.stack(np.meshgrid(offsets, offsets, indexing="ij"), axis=-1).reshape(-1, 2)
        return self.geometry_2(ops.relu(self.geometry_1(ops.cast(distances, self.compute_dtype))))

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, self.strides, self.filters)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, channels = input_shape
        _, new_height, new_width, filters = self.compute_output_shape(input_shape)
        num_pixels, num_output_pixels = height * width, new_height * new_width
        window_macs = self.window_size**2 * (self.num_relations + channels)
        total = num_pixels * channels * self.num_relations
        total += num_output_pixels * (channels * self.num_relations + window_macs + channels * filters)
        return total + self.window_size**2 * self.num_relations * (2 + self.num_relations)
