"""Merging of similar tokens. B batch, T tokens, P before the patches, D hidden, Dm metric, r merged, n of a set."""

import keras
from keras import ops

from keras_vit.checks import check_count, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenMerging(keras.layers.Layer):
    """Merges the r most similar pairs of patch tokens: bipartite soft matching.

    ToMe (arXiv 2210.09461, section 3, "Bipartite Soft Matching" and "Tracking Token Size"). The tokens are dealt in
    turn into a set A (those at even positions) and a set B. Each token of A has the most similar one of B, by the
    cosine of their metric; of these pairs the r most similar are merged, as the mean weighted by how many patches
    either stands for. What stays of A comes first, then B. There are no weights. Metric, sizes and means are in float32
    under any precision policy.

    Tokens before the patches, such as the class token, count where tokens are dealt, but are never merged and stay in
    front, as the authors' code does with one class token and one distillation token. At most half of the patch tokens
    are merged, `min(r, (T - P) // 2)`. What stays of A stands in the order in which it stood; the authors' code leaves
    it sorted by similarity where there is no class token.

    Args:
        num_merged: How many tokens r are merged into others, at least 1.
        num_prefix_tokens: How many tokens P stand before those of the patches.

    Call arguments:
        tokens: (B, T, D)
        metric: (B, T, Dm), what they are compared by; in an encoder block the mean of the heads' keys.
        sizes: (B, T) integers, how many patches each token stands for; `None`: one each.

    Returns:
        The tokens that stay, (B, T - r, D), and their sizes, (B, T - r) int32.

    Raises:
        ValueError: If `num_merged` is no positive integer, or `num_prefix_tokens` neither 0 nor one.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.TokenMerging(num_merged=2, num_prefix_tokens=1)
    >>> tokens, sizes = layer(keras.ops.ones((1, 7, 12)), keras.ops.ones((1, 7, 4)))
    >>> tuple(tokens.shape), int(keras.ops.sum(sizes))
    ((1, 5, 12), 7)
    """

    def __init__(self, num_merged, num_prefix_tokens=0, **kwargs):
        super().__init__(autocast=False, **kwargs)  # The metric stays as exact as it is, and sizes whole numbers.
        self.num_merged = check_positive_integer("num_merged", num_merged)
        self.num_prefix_tokens = check_count("num_prefix_tokens", num_prefix_tokens)

    def call(self, tokens, metric, sizes=None):
        tokens, (batch, num_tokens) = ops.cast(tokens, self.compute_dtype), ops.shape(tokens)[:2]
        sizes = ops.ones((batch, num_tokens), "int32") if sizes is None else ops.cast(sizes, "int32")
        count = self._count(num_tokens)
        if isinstance(count, int) and count == 0:
            return tokens, sizes
        first = self.num_prefix_tokens
        set_a, set_b = (ops.arange(start, num_tokens, 2, dtype="int32") for start in self._first_of_sets)
        # Picked by index: TensorFlow takes four times as long for every other row.
        order, nearest = _match(ops.take(metric, set_a, axis=1), ops.take(metric, set_b, axis=1))
        stays, leaves = ops.sort(order[:, count:], axis=1), order[:, :count]
        always = ops.arange(first, dtype="int32"), set_b
        prefix, receiving = (ops.broadcast_to(part, (batch, ops.shape(part)[0])) for part in always)
        left = ops.concatenate([prefix, ops.take(set_a, stays), receiving], axis=1)  # (B, T - r)
        receivers = first + ops.shape(stays)[1] + _rows(nearest, leaves)
        leaves = ops.take(set_a, leaves)
        return _merge(*(_rows(x, rows) for rows in (left, leaves) for x in (tokens, sizes)), receivers)

    @property
    def _first_of_sets(self):
        """The first patch token of either set: A has those at even positions."""
        first = self.num_prefix_tokens
        return first + first % 2, first + 1 - first % 2

    def _count(self, num_tokens):
        """How many of so many tokens are merged: an `int`, or a tensor where their number is one."""
        half = (num_tokens - self.num_prefix_tokens) // 2
        return max(min(self.num_merged, half), 0) if isinstance(half, int) else ops.minimum(self.num_merged, half)

    def compute_output_shape(self, tokens_shape, metric_shape=None, sizes_shape=None):
        batch, num_tokens, hidden_dim = tokens_shape
        num_left = None if num_tokens is None else num_tokens - self._count(num_tokens)
        return (batch, num_left, hidden_dim), (batch, num_left)

    def compute_output_spec(self, tokens, metric, sizes=None):
        tokens_shape, sizes_shape = self.compute_output_shape(tokens.shape)
        return keras.KerasTensor(tokens_shape, self.compute_dtype), keras.KerasTensor(sizes_shape, "int32")

    def macs(self, tokens_shape, metric_shape):
        """Multiply-accumulates for one image of batches of shapes (B, T, D) and (B, T, Dm): similarities and means."""
        _, num_tokens, hidden_dim = tokens_shape
        num_a, num_b = (len(range(start, num_tokens, 2)) for start in self._first_of_sets)
        return num_b * (num_a * metric_shape[-1] + self._count(num_tokens) * hidden_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "num_merged": self.num_merged,
            "num_prefix_tokens": self.num_prefix_tokens,
        }


def _match(metric_a, metric_b):
    """The tokens of A, those most like one of B first, (B, nA); and the most similar one of B for each, (B, nA)."""
    similarities = ops.matmul(_directions(metric_a), ops.swapaxes(_directions(metric_b), 1, 2))  # (B, nA, nB)
    if not isinstance(similarities.shape[2], int):  # An image may have one patch, which leaves B empty.
        similarities = ops.pad(similarities, ((0, 0), (0, 0), (0, 1)), constant_values=-2.0)
    best, nearest = ops.top_k(similarities, 1)
    return ops.argsort(-best[:, :, 0], axis=1), nearest[:, :, 0]


def _directions(metric):
    """Vectors (B, n, Dm) of length one, in float32."""
    metric = ops.cast(metric, "float32")
    return metric * ops.rsqrt(ops.maximum(ops.sum(ops.square(metric), axis=-1, keepdims=True), 1e-24))


def _merge(tokens, sizes, leaving, leaving_sizes, receivers):
    """Tokens (B, T - r, D) and their sizes, with those that leave, (B, r, D), in the ones that `receivers` (B, r) says.

    As a product, not as sums at indices: of so few rows it is quick everywhere.
    """
    own = ops.cast(sizes, "float32")
    positions = ops.arange(ops.shape(tokens)[1], dtype=receivers.dtype)
    is_receiver = ops.cast(receivers[:, None] == positions[:, None], "float32")  # (B, T - r, r)
    shares = is_receiver * ops.cast(leaving_sizes, "float32")[:, None]
    total = own + ops.sum(shares, axis=-1)
    merged = ops.cast(tokens, "float32") * (own / total)[:, :, None]
    merged = merged + ops.matmul(shares / total[:, :, None], ops.cast(leaving, "float32"))
    return ops.cast(merged, tokens.dtype), ops.cast(total, "int32")


def _rows(values, indices):
    """Rows (B, n, ...) of each image, by indices (B, n), out of values (B, T, ...)."""
    # As one gather out of all images: take_along_axis of TensorFlow picks number by number.
    batch, num_rows, *row_shape = ops.shape(values)
    offsets = ops.arange(batch, dtype=indices.dtype)[:, None] * num_rows
    return ops.take(ops.reshape(values, (-1, *row_shape)), indices + offsets, axis=0)
