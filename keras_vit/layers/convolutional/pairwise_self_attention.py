"""SAN's pairwise self-attention.

Shapes: B batch, H W C map, F output channels, R relation channels, N pixels in a window.
"""

import keras
from keras import ops

from keras_vit.layers.convolutional.parts import batch_norm, build_dense
from keras_vit.layers.convolutional.vector_self_attention import VectorSelfAttention


@keras.saving.register_keras_serializable(package="keras_vit")
class PairwiseSelfAttention(VectorSelfAttention):
    """Computes a weighted sum of the window around each pixel. Weights depend on differences from the centre pixel.

    `y_o = sum_p softmax_p(gamma([q_o - k_p, W (c_o - c_p)])) v_p` ("Exploring Self-Attention for Image Recognition",
    arXiv 2004.13621, equations 2 and 3, with subtraction as the relation). `c` are pixel coordinates from -1 to 1, and
    `gamma(d) = W_2 relu(BN(W_1 relu(BN(d))))`. The eight channels of a group have the same weights. As in the authors'
    code (hszhao/SAN), all linear projections except `W_1` have biases. `q` (of the centre pixel) and `k` (of the
    window's pixels) have C / 16 channels. The map is padded by reflection. The softmax and the distances are computed
    in float32 under any precision policy.

    Args:
        filters: Number F of output channels, a multiple of 8.
        window_size: Side of a window in pixels, odd.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W must be more than half of `window_size`. They may be unknown when
            the model is built.
        training: Whether the batch norms use the batch's statistics and update their moving averages.

    Returns:
        (B, H, W, F)

    Raises:
        ValueError: If an argument is invalid, or if H or W is too small.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.PairwiseSelfAttention(filters=16, window_size=3)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 5, 8, 16)
    """

    def build(self, input_shape):
        super().build(input_shape)
        self.position = build_dense(self, "position", 2, 2, use_bias=True)
        self.norm_1, self.norm_2 = (batch_norm(**self.part_arguments(f"norm_{number}")) for number in (1, 2))
        self.norm_1.build((None, None, None, None, self.relation_dim + 2))
        self.dense = build_dense(self, "dense", self.relation_dim + 2, self.relation_dim)
        self.norm_2.build((None, None, None, None, self.relation_dim))
        self.logit = build_dense(self, "logit", self.relation_dim, self.num_weights, use_bias=True)

    def call(self, maps, training=None):
        differences = self.centre(maps)[:, :, :, None] - self._windows(self.neighbour(maps))  # q_o - k_p
        differences = ops.concatenate([differences, self._distances(maps)], axis=-1)
        relations = ops.relu(self.norm_1(differences, training=training))
        relations = ops.relu(self.norm_2(self.dense(relations), training=training))
        weights = ops.softmax(ops.cast(self.logit(relations), "float32"), axis=3)
        return self._aggregate(maps, ops.cast(weights, maps.dtype))

    def _distances(self, maps):
        """Returns the projected distances `W (c_o - c_p)`, (B, H, W, N, 2)."""
        batch, height, width, _ = ops.shape(maps)
        rows = ops.broadcast_to(_coordinates(height)[:, None], (height, width))
        columns = ops.broadcast_to(_coordinates(width)[None, :], (height, width))
        kernel, bias = (ops.cast(weight, "float32") for weight in (self.position.kernel, self.position.bias))
        # Positions are in float32, because 16 bits cannot represent the small distances between neighbours.
        positions = ops.matmul(ops.stack([columns, rows], axis=-1)[None], kernel) + bias
        distances = ops.cast(positions[:, :, :, None] - self._windows(positions), self.compute_dtype)
        return ops.broadcast_to(distances, (batch, *ops.shape(distances)[1:]))

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, _ = input_shape
        weight_macs = self.window_size**2 * self.relation_dim * (self.relation_dim + 2 + self.num_weights)
        return height * width * (self._aggregating_macs(input_shape) + weight_macs + 2 * 2)


def _coordinates(length):
    """Returns coordinates (length,) from -1 to 1. `length` may be a tensor."""
    intervals = ops.maximum(ops.cast(length, "float32") - 1.0, 1.0)
    return 2.0 * ops.cast(ops.arange(length), "float32") / intervals - 1.0
