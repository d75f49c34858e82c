"""Pooling by selecting one token. Shapes: B batch, T tokens, D hidden."""

import numbers
import typing

import keras

from keras_vit.checks import shown
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(BaseLayer):
    """Selects one token, by default the class token.

    `y = z^0` (ViT, arXiv 2010.11929, eq. 4).

    Args:
        index: Index of the token. Negative indices count from the last token.

    Call arguments:
        tokens: (B, T, D)

    Returns:
        (B, D)

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.TokenPooling()(keras.ops.ones((2, 7, 12))).shape)
    (2, 12)
    """

    def __init__(self, index: int = 0, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        if isinstance(index, bool) or not isinstance(index, numbers.Integral):
            raise ValueError(f"index must be an integer. Received: {shown(index)}")
        self.index: int = int(index)

    def call(self, tokens):
        return tokens[:, self.index]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])
