"""Positions of the tokens of a text. Shapes: B batch, T tokens, D hidden."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_choice, check_size
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class TextPositions(BaseLayer):
    """Adds the position of each token of a text.

    * `"learned"`: `x_t + P_t`, with a row of a learned table P (CLIP, arXiv 2103.00020). The table is initialised from
      N(0, 0.01).
    * `"sincos"`: `sqrt(D) x_t + [sin(t f), cos(t f)]`, with the frequencies `f_j = 10000 ** (-j / (D/2 - 1))` for j
      from 0 to D/2 - 1 (TIPSv2, arXiv 2410.16512 and its code). There is no table.

    Args:
        positions: `"learned"` or `"sincos"`.
        context_length: Maximum number of tokens.

    Call arguments:
        tokens: (B, T, D)

    Returns:
        (B, T, D)

    Raises:
        ValueError: If an argument is invalid, or there are more tokens than `context_length`.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.TextPositions("learned", context_length=5)
    >>> tuple(layer(keras.ops.zeros((2, 3, 8))).shape)
    (2, 3, 8)
    """

    def __init__(self, positions: str, context_length: int, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.positions = check_choice("positions", positions, ("learned", "sincos"))
        self.context_length = check_size("context_length", context_length)

    def build(self, tokens_shape):
        if self.positions == "learned":
            shape, initializer = (self.context_length, tokens_shape[-1]), keras.initializers.RandomNormal(stddev=0.01)
            self.embedding = self.add_weight(name="embedding", shape=shape, initializer=initializer)

    def call(self, tokens):
        _, num_tokens, width = ops.shape(tokens)
        if isinstance(num_tokens, int) and num_tokens > self.context_length:
            raise ValueError(f"A text has at most {self.context_length} tokens. Received: {num_tokens}")
        if self.positions == "learned":
            return tokens + ops.cast(self.embedding, tokens.dtype)[:num_tokens]
        exponents = ops.arange(width // 2, dtype="float32") / (width // 2 - 1)
        frequencies = ops.power(10_000.0, -exponents)
        angles = ops.cast(ops.arange(num_tokens), "float32")[:, None] * frequencies
        rows = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=1)
        return math.sqrt(width) * tokens + ops.cast(rows, tokens.dtype)
