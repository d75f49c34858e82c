"""Fixed sine and cosine positions. Shapes: B batch, h w grid, N = h w patches, T tokens, D hidden."""

import typing

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class SincosPositionEmbedding(BaseLayer):
    """Adds fixed sines and cosines of the row and the column to each patch token.

    The embedding of the patch in row y and column x is `[sin(x f), cos(x f), sin(y f), cos(y f)]`, with the frequencies
    `f_i = temperature ** (-i / (D/4 - 1))` ("Better plain ViT baselines", arXiv 2205.01580, and its code). Prefix
    tokens are returned unchanged. The layer has no weights and accepts any grid.

    Args:
        temperature: Maximum wavelength in patches, divided by 2 pi.

    Call arguments:
        tokens: (B, T, D), with the patch tokens last. D is a multiple of 4, at least 8.
        patches: (B, h, w, D), the map of patch tokens. Only its size is used.

    Returns:
        (B, T, D)

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.SincosPositionEmbedding()
    >>> tuple(layer(keras.ops.zeros((5, 7, 8)), keras.ops.zeros((5, 2, 3, 8))).shape)
    (5, 7, 8)
    """

    def __init__(self, temperature: float = 10_000.0, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature

    def build(self, tokens_shape, patches_shape):
        if tokens_shape[-1] % 4 or tokens_shape[-1] < 8:
            raise ValueError(
                f"The tokens' width must be a multiple of 4 and at least 8 (sines and cosines of two coordinates). "
                f"Received: tokens of shape {tuple(tokens_shape)}"
            )

    def call(self, tokens, patches):
        height, width = ops.shape(patches)[1:3]
        rows = ops.cast(self._rows(height, width, tokens.shape[-1]), tokens.dtype)  # (N, D)
        num_prefix = ops.shape(tokens)[1] - height * width
        if isinstance(num_prefix, int) and num_prefix == 0:
            return tokens + rows
        return ops.concatenate([tokens[:, :num_prefix], tokens[:, num_prefix:] + rows], axis=1)

    def _rows(self, height, width, hidden_dim):
        num_frequencies = hidden_dim // 4
        exponents = ops.arange(num_frequencies, dtype="float32") / (num_frequencies - 1)
        frequencies = ops.power(self.temperature, -exponents)
        y = ops.cast(ops.arange(height), "float32")[:, None] * frequencies  # (h, D/4)
        x = ops.cast(ops.arange(width), "float32")[:, None] * frequencies  # (w, D/4)
        y, x = ops.repeat(y, width, axis=0), ops.tile(x, (height, 1))  # (N, D/4)
        return ops.concatenate([ops.sin(x), ops.cos(x), ops.sin(y), ops.cos(y)], axis=1)
