"""Vectors of tokens. Shapes: B batch, T tokens, V vocabulary, D hidden."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_size
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenEmbedding(BaseLayer):
    """Replaces each token id by the row of a learned table, which is initialised from N(0, 0.02).

    Args:
        vocabulary_size: Number V of rows.
        hidden_dim: Width D of a row.

    Call arguments:
        token_ids: Integers (B, T), from 0 to V - 1.

    Returns:
        (B, T, D)

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.TokenEmbedding(vocabulary_size=9, hidden_dim=4)
    >>> tuple(layer(keras.ops.convert_to_tensor([[8, 0, 3]])).shape)
    (1, 3, 4)
    """

    def __init__(self, vocabulary_size: int, hidden_dim: int, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = check_size("vocabulary_size", vocabulary_size)
        self.hidden_dim = check_size("hidden_dim", hidden_dim)

    def build(self, token_ids_shape):
        shape, initializer = (self.vocabulary_size, self.hidden_dim), keras.initializers.RandomNormal(stddev=0.02)
        self.embedding = self.add_weight(name="embedding", shape=shape, initializer=initializer)

    def call(self, token_ids):
        return ops.cast(ops.take(self.embedding, ops.cast(token_ids, "int32"), axis=0), self.compute_dtype)

    def compute_output_shape(self, token_ids_shape):
        return (*token_ids_shape, self.hidden_dim)

    def compute_output_spec(self, token_ids):
        return keras.KerasTensor(self.compute_output_shape(token_ids.shape), self.compute_dtype)
