"""The MLP of an encoder block. Shapes: B batch, T tokens, D hidden, M MLP."""

import math
import typing

import keras

from keras_vit.checks import check_choice, check_flag, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.activations import ACTIVATIONS, activate
from keras_vit.layers.ops.layouts import apply_dense, as_rows, as_tokens
from keras_vit.layers.regularization.dropout import Dropout
from keras_vit.layers.transformer.layer_normalization import LayerNormalization


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(BaseLayer):
    """Two dense layers with a GELU between them, applied to each token separately.

    `MLP(z) = GELU(z W_1 + b_1) W_2 + b_2` (ViT, arXiv 2010.11929, section 3.1), with dropout after each layer. Kernels
    are initialised with the Xavier uniform distribution, biases with N(0, 1e-6), as in the authors' code. With
    `"swiglu"`, the first layer computes a gate and a value of width M. The second layer receives `SiLU(gate) value`.

    Args:
        mlp_dim: Width M of the second layer's input.
        activation: `"gelu_tanh"` (the tanh approximation, as in Google's models), `"gelu_exact"`, `"quick_gelu"` or
            `"swiglu"`.
        dropout_rate: Dropout rate after each layer. In [0, 1).
        inner_norm: Whether there is a LayerNorm before the second layer (sub-LN, arXiv 2210.06423; EVA-02).
        layer_norm_epsilon: Number that is added to the variance in this LayerNorm.

    Call arguments:
        tokens: (B, T, D)
        training: Whether dropout is applied.

    Returns:
        (B, T, D)

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.MlpBlock(mlp_dim=32)(keras.ops.ones((2, 7, 12))).shape)
    (2, 7, 12)
    """

    def __init__(
        self,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        dropout_rate: float = 0.0,
        inner_norm: bool = False,
        layer_norm_epsilon: float = 1e-6,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mlp_dim = check_positive_integer("mlp_dim", mlp_dim)
        self.activation = check_choice("activation", activation, ACTIVATIONS)
        self.dropout_rate = dropout_rate
        self.inner_norm = check_flag("inner_norm", inner_norm)
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, input_shape):
        hidden_shape = (*input_shape[:-1], self.mlp_dim)
        self.hidden = self._dense("hidden", self._num_hidden, input_shape)
        if self.inner_norm:
            self.hidden_norm = self.build_part(LayerNormalization, "inner_norm", hidden_shape, self.layer_norm_epsilon)
        self.output_projection = self._dense("output", input_shape[-1], hidden_shape)
        self.dropout = self.build_part(Dropout, "dropout", hidden_shape, self.dropout_rate)

    @property
    def _num_hidden(self):
        return 2 * self.mlp_dim if self.activation == "swiglu" else self.mlp_dim

    def _dense(self, name, units, input_shape):
        bias_initializer = keras.initializers.RandomNormal(stddev=1e-6)
        return self.build_part(keras.layers.Dense, name, input_shape, units, bias_initializer=bias_initializer)

    def call(self, tokens, training=None):
        rows = as_rows(tokens)  # (B T, D)
        hidden = activate(self.activation, apply_dense(self.hidden, rows), training)
        hidden = self.dropout(hidden, training=training)
        if self.inner_norm:
            hidden = self.hidden_norm(hidden)
        outputs = apply_dense(self.output_projection, hidden)
        return as_tokens(self.dropout(outputs, training=training), tokens)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D) or (B, n, T, D)."""
        return math.prod(input_shape[1:]) * (self._num_hidden + self.mlp_dim)
