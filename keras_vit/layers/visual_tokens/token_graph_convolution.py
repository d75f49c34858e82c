"""A graph convolution over tokens. Shapes: B batch, L tokens of D channels."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_flag
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.pointwise_convolution import build_projection


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenGraphConvolution(BaseLayer):
    """A graph convolution over tokens, `G T W`. The learned (L, L) matrix G is the same for all images.

    This layer replaces the transformer in an ablation of Visual Transformers (arXiv 2006.03677, Table 5). Without
    `use_graph`, the output is `T W`, so tokens do not interact.

    Args:
        use_graph: Whether there is a matrix G. G is initialised with the identity.
        use_batch_norm: Whether a batch norm follows the projection.

    Call arguments:
        tokens: (B, L, D). With `use_graph`, L must be known.
        training: Whether the batch norm uses the batch's statistics and updates its moving averages.

    Returns:
        (B, L, D)

    Raises:
        ValueError: If `use_graph` is `True` and L is unknown.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.TokenGraphConvolution()(keras.ops.ones((2, 4, 6))).shape)
    (2, 4, 6)
    """

    def __init__(self, use_graph: bool = True, use_batch_norm: bool = False, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.use_graph = check_flag("use_graph", use_graph)
        self.use_batch_norm = check_flag("use_batch_norm", use_batch_norm)

    def build(self, input_shape):
        _, num_tokens, token_dim = input_shape
        self.graph = None
        if self.use_graph:
            if num_tokens is None:
                raise ValueError(
                    f"{self.name!r} has a weight for each pair of tokens, so the number of tokens must be known. "
                    f"Received: tokens of shape {tuple(input_shape)}"
                )
            self.graph = self.add_weight(name="graph", shape=(num_tokens, num_tokens), initializer="identity")
        self.projection = build_projection(self, "projection", token_dim, token_dim)

    def call(self, tokens, training=None):
        if self.graph is not None:
            tokens = ops.matmul(self.graph, tokens)
        return self.projection(tokens, training=training)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, L, D)."""
        mixing = 0 if self.graph is None else input_shape[1] * math.prod(input_shape[1:])
        return mixing + self.projection.macs(input_shape)
