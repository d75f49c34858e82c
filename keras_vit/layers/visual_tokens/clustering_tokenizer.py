"""Tokens from clusters of pixels. Shapes: B batch, H W C map, N = HW pixels, L tokens of CT channels."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.ops.maps import as_pixels, shrink, squarest_grid
from keras_vit.layers.visual_tokens.tokenizer import Tokenizer


@keras.saving.register_keras_serializable(package="keras_vit")
class ClusteringTokenizer(Tokenizer):
    """Computes tokens as weighted means of the pixels X of a map. The weights depend on cluster centres of the pixels.

    `W_K = kmeans(X)`, `A = softmax_HW(X W_K)` and `T = A^T X`. If CT is not C, `T = (A^T (X W_V)) W_T`. This is an
    ablation of Visual Transformers (arXiv 2006.03677, Table 3; arXiv 2006.03677v1, appendix C).

    For the clustering, pixels are scaled to unit norm. The map is resized bilinearly to a grid of L pixels. These L
    pixels are the initial centres. Centres are scaled to unit norm after each step of Lloyd's algorithm. A centre to
    which no pixel is assigned stays the same. Gradients do not flow through the centres. The clustering and the softmax
    are computed in float32 under any precision policy.

    Args:
        num_tokens: Number L of tokens.
        token_dim: Number CT of channels of a token. `None`: C, without a projection.
        group_width: Number of channels in each group of `W_V`. `None`: one group.
        use_batch_norm: Whether a batch norm follows each projection.
        num_iterations: Number of steps of Lloyd's algorithm.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.
        training: Whether the batch norms use the batch's statistics and update their moving averages.

    Returns:
        (B, L, CT)

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.ClusteringTokenizer(num_tokens=4)(keras.random.normal((2, 5, 7, 6))).shape)
    (2, 4, 6)
    """

    def __init__(
        self,
        num_tokens: int,
        token_dim: int | None = None,
        group_width: int | None = None,
        use_batch_norm: bool = False,
        num_iterations: int = 3,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(token_dim, group_width, use_batch_norm, **kwargs)
        self.num_tokens = check_positive_integer("num_tokens", num_tokens)
        self.num_iterations = check_positive_integer("num_iterations", num_iterations)

    def centres(self, maps):
        """Returns the cluster centres W_K of maps (B, H, W, C): float32 (B, L, C), with unit norm."""
        maps = _to_unit_norm(ops.cast(ops.stop_gradient(ops.convert_to_tensor(maps)), "float32"))
        pixels = as_pixels(maps)
        centres = _to_unit_norm(as_pixels(shrink(maps, squarest_grid(self.num_tokens))))
        for _ in range(self.num_iterations):
            nearest = ops.argmax(ops.matmul(pixels, ops.swapaxes(centres, 1, 2)), axis=-1)
            members = ops.one_hot(nearest, self.num_tokens, dtype="float32")  # (B, N, L)
            sums = ops.matmul(ops.swapaxes(members, 1, 2), pixels)
            has_members = ops.expand_dims(ops.any(members > 0, axis=1), -1)
            centres = ops.where(has_members, _to_unit_norm(sums), centres)
        return ops.stop_gradient(centres)

    def attention_weights(self, maps):
        """Returns the weights A, (B, 1, N, L). The weights of each token sum to 1 over the pixels."""
        pixels = ops.cast(as_pixels(maps), "float32")
        logits = ops.matmul(pixels, ops.swapaxes(self.centres(maps), 1, 2))
        return ops.expand_dims(ops.cast(ops.softmax(logits, axis=1), maps.dtype), 1)

    def call(self, maps, training=None):
        return self._gather(maps, self.attention_weights(maps), training)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.num_tokens, self.token_dim or input_shape[-1])

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        products = math.prod(input_shape[1:]) * self.num_tokens
        return (1 + 2 * self.num_iterations) * products + self._gathering_macs(input_shape, self.num_tokens)


def _to_unit_norm(vectors):
    return vectors / ops.maximum(ops.sqrt(ops.sum(ops.square(vectors), axis=-1, keepdims=True)), 1e-12)
