"""Which tokens of a text attend to each other. Shapes: B batch, T tokens."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_choice, check_count
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class TextAttentionMask(BaseLayer):
    """Computes the `attention_mask` of `keras_vit.layers.EncoderBlock` for texts.

    Args:
        kind: `"causal"`: token s is seen by token t if s is at most t. `"valid"`: tokens other than padding are seen by
            all tokens. In a text without such tokens, all have the same weight.
        padding_id: Id of padding.

    Call arguments:
        token_ids: Integers (B, T).

    Returns:
        Booleans (1, T, T) for `"causal"`, or (B, 1, T) for `"valid"`.

    Example:

    >>> import keras, keras_vit
    >>> ids = keras.ops.convert_to_tensor([[4, 7, 0]])
    >>> keras.ops.convert_to_numpy(keras_vit.layers.TextAttentionMask("valid")(ids)).tolist()
    [[[True, True, False]]]
    """

    def __init__(self, kind: str, padding_id: int = 0, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.kind = check_choice("kind", kind, ("causal", "valid"))
        self.padding_id = check_count("padding_id", padding_id)

    def call(self, token_ids):
        if self.kind == "valid":
            return ops.not_equal(token_ids, self.padding_id)[:, None]
        indices = ops.arange(ops.shape(token_ids)[1])
        return (indices[:, None] >= indices)[None]

    def compute_output_spec(self, token_ids):
        batch, num_tokens = token_ids.shape
        shape = (1, num_tokens, num_tokens) if self.kind == "causal" else (batch, 1, num_tokens)
        return keras.KerasTensor(shape, "bool")
