"""SAN's patchwise self-attention. Shapes: B batch, H W C map, F output channels, N pixels in a window."""

import keras
from keras import ops

from keras_vit.layers.convolutional.parts import batch_norm, build_dense
from keras_vit.layers.convolutional.vector_self_attention import VectorSelfAttention


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchwiseSelfAttention(VectorSelfAttention):
    """Computes a weighted sum of the pixels in the window around each pixel. Weights depend on the whole window.

    `y_o = sum_p gamma([q_o, k_1, ..., k_N])_p v_p` ("Exploring Self-Attention for Image Recognition", arXiv 2004.13621,
    equations 4 and 5, with concatenation as the relation). `gamma(d) = W_2 relu(BN(W_1 relu(BN(d))))` returns the
    weights of all N pixels, without a softmax. Groups of eight channels share their weights. As in the authors' code
    (hszhao/SAN), all linear projections except `W_1` have biases. `q` (of the centre pixel) and `k` (of the window's
    pixels) have C / 16 channels. The map is padded by reflection.

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
    >>> layer = keras_vit.layers.PatchwiseSelfAttention(filters=16, window_size=3)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 5, 8, 16)
    """

    def build(self, input_shape):
        super().build(input_shape)
        num_pixels = self.window_size**2
        channels = self.relation_dim * (1 + num_pixels)
        self.norm_1, self.norm_2 = (batch_norm(**self.part_arguments(f"norm_{number}")) for number in (1, 2))
        self.norm_1.build((None, None, None, channels))
        self.dense = build_dense(self, "dense", channels, self.num_weights)
        self.norm_2.build((None, None, None, self.num_weights))
        self.weight = build_dense(self, "weight", self.num_weights, num_pixels * self.num_weights, use_bias=True)

    def call(self, maps, training=None):
        keys = self._windows(self.neighbour(maps))
        shape = ops.shape(keys)[:3]
        keys = ops.reshape(keys, (*shape, self.window_size**2 * self.relation_dim))
        relations = self.norm_1(ops.concatenate([self.centre(maps), keys], axis=-1), training=training)
        relations = ops.relu(self.norm_2(self.dense(ops.relu(relations)), training=training))
        weights = ops.reshape(self.weight(relations), (*shape, self.window_size**2, self.num_weights))
        return self._aggregate(maps, weights)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, _ = input_shape
        num_pixels = self.window_size**2
        weight_macs = (1 + num_pixels) * self.relation_dim * self.num_weights + num_pixels * self.num_weights**2
        return height * width * (self._aggregating_macs(input_shape) + weight_macs)
