"""Merging of similar tokens.

Shapes: B batch, T tokens, P prefix tokens, D hidden, Dm metric, r merged tokens, n set size.
"""

import typing

import keras
from keras import ops

from keras_vit.checks import check_count, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.layouts import gather_rows


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenMerging(BaseLayer):
    """Merges the r most similar pairs of patch tokens by bipartite soft matching.

    This is ToMe (arXiv 2210.09461, section 3, "Bipartite Soft Matching" and "Tracking Token Size"). The tokens at even
    positions form set A, the tokens at odd positions form set B. Each token of A is paired with the most similar token
    of B. The similarity of two tokens is the cosine of their metric vectors. Each of the r most similar pairs is
    replaced by its mean. In this mean, each token counts in proportion to its number of patches. The output contains
    the remaining tokens of A, then the tokens of B. The layer has no weights. Similarities and means are computed in
    float32 under any precision policy.

    Prefix tokens, such as the class token, are included when positions are counted. However, they are never merged, and
    they come first in the output. The authors' code does the same for a class token and a distillation token. The
    number of merged tokens is `min(r, (T - P) // 2)`, at most half of the patch tokens. The remaining tokens of A keep
    their order. If there is no class token, the authors' code sorts these tokens by similarity instead.

    Args:
        num_merged: Number r of tokens that are merged into other tokens, at least 1.
        num_prefix_tokens: Number P of tokens before the patch tokens.

    Call arguments:
        tokens: (B, T, D)
        metric: (B, T, Dm), vectors that are compared. An encoder block passes the mean of its heads' keys.
        sizes: (B, T) integers, number of patches that each token represents. `None`: all sizes are 1.

    Returns:
        The tokens after merging, (B, T - r, D), and their sizes, int32 (B, T - r).

    Raises:
        ValueError: If `num_merged` is not a positive integer, or if `num_prefix_tokens` is negative or not an integer.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.TokenMerging(num_merged=2, num_prefix_tokens=1)
    >>> tokens, sizes = layer(keras.ops.ones((1, 7, 12)), keras.ops.ones((1, 7, 4)))
    >>> tuple(tokens.shape), int(keras.ops.sum(sizes))
    ((1, 5, 12), 7)
    """

    def __init__(self, num_merged: int, num_prefix_tokens: int = 0, **kwargs: typing.Any) -> None:
        super().__init__(autocast=False, **kwargs)  # Autocast would also cast the metric and the sizes.
        self.num_merged = check_positive_integer("num_merged", num_merged)
        self.num_prefix_tokens = check_count("num_prefix_tokens", num_prefix_tokens)

    def call(self, tokens, metric, sizes=None):
        tokens, (batch, num_tokens) = ops.cast(tokens, self.compute_dtype), ops.shape(tokens)[:2]
        sizes = ops.ones((batch, num_tokens), "int32") if sizes is None else ops.cast(sizes, "int32")
        count = self._count(num_tokens)
        if isinstance(count, int) and count == 0:
            return tokens, sizes
        first = self.num_prefix_tokens
        set_a, set_b = (ops.arange(start, num_tokens, 2, dtype="int32") for start in self._set_starts)
        # Tokens are selected by index. In TensorFlow, a slice with a step of 2 takes four times as long.
        order, nearest = _match(ops.take(metric, set_a, axis=1), ops.take(metric, set_b, axis=1))
        staying, leaving = ops.sort(order[:, count:], axis=1), order[:, :count]
        unmerged = ops.arange(first, dtype="int32"), set_b
        prefix, receiving = (ops.broadcast_to(part, (batch, ops.shape(part)[0])) for part in unmerged)
        remaining = ops.concatenate([prefix, ops.take(set_a, staying), receiving], axis=1)  # (B, T - r)
        receivers = first + ops.shape(staying)[1] + gather_rows(nearest, leaving)
        leaving = ops.take(set_a, leaving)
        left, merged = ((gather_rows(tokens, rows), gather_rows(sizes, rows)) for rows in (remaining, leaving))
        return _merge(*left, *merged, receivers)

    @property
    def _set_starts(self):
        """Positions of the first patch token of A and of the first patch token of B."""
        first = self.num_prefix_tokens
        return first + first % 2, first + 1 - first % 2

    def _count(self, num_tokens):
        """Returns the number of merged tokens. It is a tensor if `num_tokens` is a tensor, otherwise an `int`."""
        half = (num_tokens - self.num_prefix_tokens) // 2
        return max(min(self.num_merged, half), 0) if isinstance(half, int) else ops.minimum(self.num_merged, half)

    def compute_output_shape(self, tokens_shape, metric_shape=None, sizes_shape=None):
        batch, num_tokens, hidden_dim = tokens_shape
        num_outputs = None if num_tokens is None else num_tokens - self._count(num_tokens)
        return (batch, num_outputs, hidden_dim), (batch, num_outputs)

    def compute_output_spec(self, tokens, metric, sizes=None):
        tokens_shape, sizes_shape = self.compute_output_shape(tokens.shape)
        return keras.KerasTensor(tokens_shape, self.compute_dtype), keras.KerasTensor(sizes_shape, "int32")

    def macs(self, tokens_shape, metric_shape):
        """Multiply-accumulates for one image of batches of shapes (B, T, D) and (B, T, Dm)."""
        _, num_tokens, hidden_dim = tokens_shape
        num_a, num_b = (len(range(start, num_tokens, 2)) for start in self._set_starts)
        return num_b * (num_a * metric_shape[-1] + self._count(num_tokens) * hidden_dim)


def _match(metric_a, metric_b):
    """Returns two index arrays (B, nA).

    The first contains the indices of the tokens in set A. Tokens that are most similar to their nearest token in set B
    come first. The second contains the index of the nearest token in set B for each token in set A.
    """
    similarities = ops.matmul(_directions(metric_a), ops.swapaxes(_directions(metric_b), 1, 2))  # (B, nA, nB)
    if not isinstance(similarities.shape[2], int):  # Set B may be empty, but top_k needs at least one column.
        similarities = ops.pad(similarities, ((0, 0), (0, 0), (0, 1)), constant_values=-2.0)
    best, nearest = ops.top_k(similarities, 1)
    return ops.argsort(-best[:, :, 0], axis=1), nearest[:, :, 0]


def _directions(metric):
    """Scales vectors (B, n, Dm) to length one, in float32."""
    metric = ops.cast(metric, "float32")
    return metric * ops.rsqrt(ops.maximum(ops.sum(ops.square(metric), axis=-1, keepdims=True), 1e-24))


def _merge(tokens, sizes, leaving, leaving_sizes, receivers):
    """Merges the tokens `leaving` (B, r, D) into `tokens` (B, T - r, D) at the indices `receivers` (B, r).

    Returns tokens and sizes. There are few tokens, so a matrix product is faster than a scatter-add.
    """
    sizes = ops.cast(sizes, "float32")
    positions = ops.arange(ops.shape(tokens)[1], dtype=receivers.dtype)
    is_receiver = ops.cast(receivers[:, None] == positions[:, None], "float32")  # (B, T - r, r)
    shares = is_receiver * ops.cast(leaving_sizes, "float32")[:, None]
    total = sizes + ops.sum(shares, axis=-1)
    merged = ops.cast(tokens, "float32") * (sizes / total)[:, :, None]
    merged = merged + ops.matmul(shares / total[:, :, None], ops.cast(leaving, "float32"))
    return ops.cast(merged, tokens.dtype), ops.cast(total, "int32")
