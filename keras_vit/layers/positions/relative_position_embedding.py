"""Relative positions. B batch, n lines of tokens, T tokens (t asks, s answers), K heads, Dh width of a head."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositionEmbedding(keras.layers.Layer):
    """What the distance of two tokens adds to the logit of their attention.

    `q_t r_{t-s}`, with one learned row for each of the 2T - 1 offsets in the sequence of tokens, class token included,
    the same for all heads (ViT, arXiv 2010.11929, appendix D.4, after arXiv 1803.02155, section 3.2, without its term
    for the values). The paper leaves open whether heads share their rows and how these start; here they do, from
    N(0, 0.02) as absolute positions. Row `T - 1 + t - s` of the table is `r_{t-s}`.

    Call arguments:
        queries: (B, T, K, Dh), or (B, n, T, K, Dh) for n lines of tokens. Scaled as for the products with the keys.

    Returns:
        (B, K, T, T) or (B, n, K, T, T), to be added to the logits.

    Raises:
        ValueError: If T is unknown, or another in a call than in the first.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.RelativePositionEmbedding()(keras.ops.ones((2, 7, 3, 4))).shape)
    (2, 3, 7, 7)
    """

    def build(self, queries_shape):
        *_, num_tokens, _, key_dim = queries_shape
        if num_tokens is None:
            raise ValueError(
                f"Relative positions have a row for each offset of two tokens, so the number of tokens must be known. "
                f"Received: queries of shape {tuple(queries_shape)}"
            )
        self.num_tokens = num_tokens
        self.embedding = self.add_weight(
            name="embedding",
            shape=(2 * num_tokens - 1, key_dim),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def call(self, queries):
        if queries.shape[-3] not in (None, self.num_tokens):
            raise ValueError(
                f"The relative positions are those of {self.num_tokens} tokens. Received: queries of shape "
                f"{tuple(queries.shape)}. Build a model for this image size."
            )
        places = ops.arange(self.num_tokens)
        offsets = places[:, None] - places[None] + (self.num_tokens - 1)  # (T, T), from 0 to 2T - 2
        # Gathered first: half the products of the other way, which multiplies all offsets and then picks.
        rows = ops.take(ops.convert_to_tensor(self.embedding), offsets, axis=0)  # (T, T, Dh)
        lines = "bn"[: len(queries.shape) - 3]
        return ops.einsum(f"{lines}tkh,tsh->{lines}kts", queries, rows)

    def compute_output_shape(self, queries_shape):
        *lines, num_tokens, num_heads, _ = queries_shape
        return (*lines, num_heads, num_tokens, num_tokens)
