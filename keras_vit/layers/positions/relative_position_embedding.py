"""Relative positions.

Shapes: B batch, n sequences per image, T tokens (t query, s key), K heads, Dh width of a head.
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositionEmbedding(keras.layers.Layer):
    """Computes a term of the attention logits that depends on the offset between two tokens.

    The term is `q_t r_{t-s}` for query t and key s. There is one learned row r for each of the 2T - 1 offsets between
    tokens, including the class token (ViT, arXiv 2010.11929, appendix D.4, which follows arXiv 1803.02155, section
    3.2). In contrast to arXiv 1803.02155, no term is added to the values. The ViT paper does not define whether heads
    share rows or how rows are initialised. In this layer, heads share rows, and rows are initialised from N(0, 0.02),
    like absolute positions. Row `T - 1 + t - s` of the table is `r_{t-s}`.

    Call arguments:
        queries: (B, T, K, Dh), or (B, n, T, K, Dh) for n sequences per image. They must already be scaled.

    Returns:
        (B, K, T, T) or (B, n, K, T, T), to be added to the logits.

    Raises:
        ValueError: If the number T of tokens is unknown, or differs from that of the first call.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.RelativePositionEmbedding()(keras.ops.ones((2, 7, 3, 4))).shape)
    (2, 3, 7, 7)
    """

    def build(self, queries_shape):
        *_, num_tokens, _, key_dim = queries_shape
        if num_tokens is None:
            raise ValueError(
                f"Relative positions have a row for each offset between two tokens, so the number of tokens must be "
                f"known. Received: queries of shape {tuple(queries_shape)}"
            )
        self.num_tokens = num_tokens
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.embedding = self.add_weight((2 * num_tokens - 1, key_dim), initializer, name="embedding")

    def call(self, queries):
        if queries.shape[-3] not in (None, self.num_tokens):
            raise ValueError(
                f"The relative positions were built for {self.num_tokens} tokens. Received: queries of shape "
                f"{tuple(queries.shape)}. Build a model for this image size."
            )
        positions = ops.arange(self.num_tokens)
        offsets = positions[:, None] - positions[None] + (self.num_tokens - 1)  # (T, T), from 0 to 2T - 2
        # Rows are gathered before the multiplication. Multiplying by the whole table would need twice as many products.
        rows = ops.take(ops.convert_to_tensor(self.embedding), offsets, axis=0)  # (T, T, Dh)
        batch_axes = "bn"[: len(queries.shape) - 3]
        return ops.einsum(f"{batch_axes}tkh,tsh->{batch_axes}kts", queries, rows)

    def compute_output_shape(self, queries_shape):
        *batch_shape, num_tokens, num_heads, _ = queries_shape
        return (*batch_shape, num_heads, num_tokens, num_tokens)
