"""The class token. Shapes: B batch, N patches, T = N + 1 tokens, D hidden."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(keras.layers.Layer):
    """Prepends one learned token, which is the same for all images.

    `z = [token; z_1; ...; z_N]` (ViT, arXiv 2010.11929, eq. 1). The token starts at zero, as in the authors' code.

    Call arguments:
        tokens: (B, N, D)

    Returns:
        (B, N + 1, D), the class token at index 0.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.ClassToken()(keras.ops.ones((2, 6, 8))).shape)
    (2, 7, 8)
    """

    def build(self, input_shape):
        self.token = self.add_weight(name="token", shape=(1, 1, input_shape[-1]), initializer="zeros")

    def call(self, tokens):
        token = ops.cast(self.token, tokens.dtype)
        return ops.concatenate([ops.repeat(token, ops.shape(tokens)[0], axis=0), tokens], axis=1)

    def compute_output_shape(self, input_shape):
        batch, num_tokens, hidden_dim = input_shape
        return (batch, num_tokens and num_tokens + 1, hidden_dim)
