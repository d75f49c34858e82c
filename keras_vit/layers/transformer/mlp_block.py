"""The MLP of an encoder block. B batch, T tokens, D hidden, M MLP."""

import math

import keras
from keras import ops

from keras_vit.checks import check_choice, check_positive_integer
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.ops.textbook import reshape_like, textbook_multiply
from keras_vit.layers.transformer.dropout import Dropout


def gelu_tanh(x):
    """`x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))` (arXiv 1606.08415)."""
    return ops.gelu(x, approximate=True)


def gelu_exact(x):
    """`x/2 (1 + erf(x / sqrt(2)))` (arXiv 1606.08415)."""
    # Not ops.gelu(approximate=False): that is erfc, for which ONNX has no operator.
    return 0.5 * x * (1.0 + ops.erf(x * (1.0 / math.sqrt(2.0))))


def quick_gelu(x):
    """`x sigmoid(1.702 x)` (arXiv 1606.08415; CLIP)."""
    return x * ops.sigmoid(1.702 * x)


def swiglu(x):
    """`SiLU(gate) value`, where x holds the gate in its first half and the value in its second (arXiv 2002.05202)."""
    gate, value = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * value


_ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu_exact": gelu_exact, "quick_gelu": quick_gelu, "swiglu": swiglu}


def _with_gradient(gate, slope):
    """`x gate(x)` with its gradient by hand, `gate(x) + x slope(x)`; `slope` may use what `gate` returned."""

    @ops.custom_gradient
    def activation(x):
        kept = gate(x)
        return x * kept, lambda upstream: upstream * (kept + x * slope(x, kept))

    return activation


_LINEAR, _CUBIC = 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715
# For training on TensorFlow, which keeps several arrays of (B T, M) for its own gradients, where these keep x and the
# gate. (1 + tanh(u)) / 2 is sigmoid(2 u).
_WITH_GRADIENTS = {
    **_ACTIVATIONS,
    "gelu_tanh": _with_gradient(
        lambda x: ops.sigmoid(x * (_CUBIC * ops.square(x) + _LINEAR)),
        lambda x, gate: gate * (1 - gate) * (3 * _CUBIC * ops.square(x) + _LINEAR),
    ),
    "gelu_exact": _with_gradient(
        lambda x: 0.5 * ops.erf(x * math.sqrt(0.5)) + 0.5,
        lambda x, gate: ops.exp(-0.5 * ops.square(x)) * (1 / math.sqrt(2 * math.pi)),
    ),
    "quick_gelu": _with_gradient(lambda x: ops.sigmoid(1.702 * x), lambda x, gate: 1.702 * gate * (1 - gate)),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(CompositeLayer):
    """Two dense layers with a GELU between them, applied to every token alone.

    `MLP(z) = GELU(z W_1 + b_1) W_2 + b_2` (ViT, arXiv 2010.11929, section 3.1), dropout after each. Xavier uniform
    kernels, biases N(0, 1e-6), as in the authors' code. With `"swiglu"` the first layer is twice as wide, gate and
    value side by side, and `SiLU(gate) value` goes into the second.

    Args:
        mlp_dim: Width M of what the second layer reads.
        activation: `"gelu_tanh"`, the tanh approximation that Google's models use, `"gelu_exact"`, `"quick_gelu"` or
            `"swiglu"`.
        dropout_rate: In [0, 1).

    Call arguments:
        tokens: (B, T, D)
        seeds: What `draw_seeds` returned; `None`: drawn in this call.
        training: Whether dropout acts.

    Returns:
        (B, T, D)

    Raises:
        ValueError: If `activation` is not one of the four.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.MlpBlock(mlp_dim=32)(keras.ops.ones((2, 7, 12))).shape)
    (2, 7, 12)
    """

    def __init__(self, mlp_dim, activation="gelu_tanh", dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        check_choice("activation", activation, _ACTIVATIONS)
        self.mlp_dim = check_positive_integer("mlp_dim", mlp_dim)
        self.activation = activation
        self.dropout_rate = dropout_rate

    def build(self, input_shape):
        hidden_shape = (*input_shape[:-1], self.mlp_dim)
        self.hidden = self._dense("hidden", self._num_hidden, input_shape)
        self.output_projection = self._dense("output", input_shape[-1], hidden_shape)
        self.dropout = Dropout(self.dropout_rate, **self.part_arguments("dropout"))
        self.dropout.build(hidden_shape)

    @property
    def _num_hidden(self):
        return 2 * self.mlp_dim if self.activation == "swiglu" else self.mlp_dim

    def _dense(self, name, units, input_shape):
        layer = keras.layers.Dense(
            units,
            kernel_initializer="glorot_uniform",
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            **self.part_arguments(name),
        )
        layer.build(input_shape)
        return layer

    def draw_seeds(self):
        """The seeds of one call in training, of either dropout; `None` if nothing is ever dropped."""
        return (self.dropout.draw_seed(), self.dropout.draw_seed()) if self.dropout_rate > 0 else None

    def call(self, tokens, seeds=None, training=None):
        hidden_seed, output_seed = seeds or (None, None)
        # TensorFlow on CPUs joins a product of two matrices, its bias and a GELU into one kernel, if it finds them: it
        # sorts operations by name, and looks for those of the GELU behind those of the layer `hidden`.
        multiply = textbook_multiply()
        rows = tokens if multiply else ops.reshape(tokens, (-1, tokens.shape[-1]))  # (B T, D)
        hidden = _apply(self.hidden, rows, multiply)
        with keras.name_scope("nonlinearity"):
            is_by_hand = training and keras.backend.backend() == "tensorflow"
            hidden = (_WITH_GRADIENTS if is_by_hand else _ACTIVATIONS)[self.activation](hidden)
        hidden = self.dropout(hidden, seed=hidden_seed, training=training)
        outputs = _apply(self.output_projection, hidden, multiply)
        outputs = self.dropout(outputs, seed=output_seed, training=training)
        return outputs if multiply else reshape_like(outputs, tokens, 1, tokens.shape[-1:])

    def compute_output_shape(self, input_shape):
        return input_shape

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D)."""
        _, num_tokens, hidden_dim = input_shape
        return num_tokens * hidden_dim * (self._num_hidden + self.mlp_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "activation": self.activation,
            "dropout_rate": self.dropout_rate,
        }


def _apply(layer, inputs, multiply):
    """What a `Dense` returns, with `multiply` for its product if there is one."""
    if multiply is None or layer.quantization_mode is not None:
        return layer(inputs)
    kernel, bias = (ops.cast(weight, layer.compute_dtype) for weight in (layer.kernel, layer.bias))
    return multiply(ops.cast(inputs, layer.compute_dtype), kernel) + bias
