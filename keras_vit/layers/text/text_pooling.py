"""The vector of a text. Shapes: B batch, T tokens, D hidden."""

import typing

import keras
from keras import ops

from keras_vit.architectures.base import optional
from keras_vit.checks import check_choice, check_count
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class TextPooling(BaseLayer):
    """Selects a token of each text, or averages its tokens.

    Args:
        pooling: `"end"`: the first token with the id `end_id`, or the first one of the text if there is none.
            `"largest"`: the first token with the largest id. `"last"`: the last token, whatever it is. `"mean"`: the
            mean of all tokens that are no padding, or zeros if there are none.
        end_id: Id of the end token.
        padding_id: Id of padding.

    Call arguments:
        tokens: (B, T, D)
        token_ids: Integers (B, T).

    Returns:
        (B, D)

    Example:

    >>> import keras, keras_vit
    >>> tokens, ids = keras.ops.ones((1, 3, 8)), keras.ops.convert_to_tensor([[4, 7, 0]])
    >>> tuple(keras_vit.layers.TextPooling("largest")(tokens, ids).shape)
    (1, 8)
    """

    def __init__(self, pooling: str, end_id: int | None = None, padding_id: int = 0, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.pooling = check_choice("pooling", pooling, ("end", "largest", "last", "mean"))
        self.end_id = (optional(check_count) if pooling != "end" else check_count)("end_id", end_id)
        self.padding_id = check_count("padding_id", padding_id)

    def call(self, tokens, token_ids):
        if self.pooling == "last":
            return tokens[:, -1]
        if self.pooling == "mean":
            is_valid = ops.cast(ops.not_equal(token_ids, self.padding_id), "float32")
            weights = is_valid / (ops.sum(is_valid, axis=1, keepdims=True) + 1e-8)
        else:
            values = token_ids if self.pooling == "largest" else ops.equal(token_ids, self.end_id)
            weights = ops.one_hot(ops.argmax(ops.cast(values, "int32"), axis=1), ops.shape(tokens)[1])
        return ops.squeeze(ops.matmul(ops.cast(weights, tokens.dtype)[:, None], tokens), axis=1)

    def compute_output_shape(self, tokens_shape, token_ids_shape):
        return (tokens_shape[0], tokens_shape[-1])
