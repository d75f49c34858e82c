"""Aggregation by relations in windows. B batch, H W C map, F channels put out, G relations, N places of a window."""

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.convolutional.local_windows import check_window_size, inside_map, local_windows
from keras_vit.layers.convolutional.projections import built_dense
from keras_vit.layers.convolutional.striding import strided, strided_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class LocalRelation(CompositeLayer):
    """Means of the window around each place, weighted by how its places fit to that in the centre.

    `y_o = W sum_p softmax_p(-(q_o - k_p)^2 + g(p - o)) x_p` over the places p of the window that lie in the map ("Local
    Relation Networks for Image Recognition", arXiv 1904.11491, equations 4 and 5, with the squared difference). Queries
    and keys are scalars, one for each relation, and each relation weighs some channels, the last one what is left of
    them. The geometry prior `g` is a network of two layers with a ReLU between them, as wide as there are relations, of
    the distances in rows and columns, which range from -1 to 1. With strides, every so many places ask. The softmax is
    computed in float32 under any precision policy.

    Args:
        filters: Channels F that are put out.
        window_size: Side of a window in pixels, odd.
        strides: Step in pixels, the same for both axes.
        shared_channels: Number of channels that share a relation: G is C divided by it and rounded up.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.

    Returns:
        (B, h, w, F), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If an argument is impossible.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.LocalRelation(filters=12, window_size=3, strides=2, shared_channels=4)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 6))).shape)
    (2, 3, 4, 12)
    """

    def __init__(self, filters, window_size=7, strides=1, shared_channels=8, **kwargs):
        super().__init__(**kwargs)
        self.filters = check_positive_integer("filters", filters)
        self.window_size = check_window_size(window_size)
        self.strides = check_positive_integer("strides", strides)
        self.shared_channels = check_positive_integer("shared_channels", shared_channels)

    def build(self, input_shape):
        channels = input_shape[-1]
        self.num_relations = -(-channels // self.shared_channels)
        self.query = built_dense(self, "query", channels, self.num_relations)
        self.key = built_dense(self, "key", channels, self.num_relations)
        self.geometry_1 = built_dense(self, "geometry_1", 2, self.num_relations, use_bias=True)
        # A bias here would be added to all logits of a softmax alike.
        self.geometry_2 = built_dense(self, "geometry_2", self.num_relations, self.num_relations)
        self.projection = built_dense(self, "projection", channels, self.filters)

    def call(self, maps):
        window = (self.window_size, self.strides)
        queries = self.query(strided(maps, self.strides))
        keys = local_windows(self.key(maps), *window)
        logits = self._geometry_prior() - ops.square(queries[:, :, :, None] - keys)
        logits = ops.where(inside_map(maps, *window), ops.cast(logits, "float32"), -1e9)
        weights = ops.cast(ops.softmax(logits, axis=3), maps.dtype)  # (B, h, w, N, G)
        values = local_windows(self._fill(maps), *window)
        values = ops.reshape(values, (*ops.shape(values)[:-1], self.num_relations, self.shared_channels))
        means = ops.einsum("bhwng,bhwngs->bhwgs", weights, values)
        means = ops.reshape(means, (*ops.shape(means)[:3], self.num_relations * self.shared_channels))
        return self.projection(means[..., : maps.shape[-1]])

    def _geometry_prior(self):
        """(N, G)"""
        places = np.linspace(-1, 1, self.window_size) if self.window_size > 1 else np.zeros(1)
        distances = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1).reshape(-1, 2)
        return self.geometry_2(ops.relu(self.geometry_1(ops.cast(distances, self.compute_dtype))))

    def _fill(self, maps):
        """Maps with channels of zeros after theirs, so that all relations have as many."""
        missing = self.num_relations * self.shared_channels - maps.shape[-1]
        return ops.pad(maps, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else maps

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, self.strides, self.filters)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, channels = input_shape
        _, new_height, new_width, filters = self.compute_output_shape(input_shape)
        places, places_put_out = height * width, new_height * new_width
        of_window = self.window_size**2 * (self.num_relations + channels)
        return (
            places * channels * self.num_relations
            + places_put_out * (channels * self.num_relations + of_window + channels * filters)
            + self.window_size**2 * self.num_relations * (2 + self.num_relations)
        )

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "window_size": self.window_size,
            "strides": self.strides,
            "shared_channels": self.shared_channels,
        }
