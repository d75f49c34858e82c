"""Register tokens. Shapes: B batch, T tokens, R registers, D hidden."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive, check_positive_integer
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class RegisterTokens(BaseLayer):
    """Prepends learned tokens, which are the same for all images.

    The registers have no position embedding, and the head does not use them ("Vision Transformers Need Registers",
    arXiv 2309.16588).

    Args:
        num_tokens: Number R of registers.
        stddev: Standard deviation of their initial values. The default is that of DINOv2's code.

    Call arguments:
        tokens: (B, T, D)

    Returns:
        (B, R + T, D), the registers first.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.RegisterTokens(num_tokens=4)(keras.ops.ones((2, 6, 8))).shape)
    (2, 10, 8)
    """

    def __init__(self, num_tokens: int, stddev: float = 1e-6, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.num_tokens = check_positive_integer("num_tokens", num_tokens)
        self.stddev = check_positive("stddev", stddev)

    def build(self, input_shape):
        initializer = keras.initializers.RandomNormal(stddev=self.stddev)
        self.registers = self.add_weight((1, self.num_tokens, input_shape[-1]), initializer, name="tokens")

    def call(self, tokens):
        registers = ops.cast(self.registers, tokens.dtype)
        return ops.concatenate([ops.repeat(registers, ops.shape(tokens)[0], axis=0), tokens], axis=1)

    def compute_output_shape(self, input_shape):
        batch, num_tokens, hidden_dim = input_shape
        return (batch, num_tokens and num_tokens + self.num_tokens, hidden_dim)
