"""Multi-head self-attention.

B batch, n lines of tokens that attend each by itself, T tokens (t asks, s answers), D hidden, K heads, Dh = D / K.
"""

import math

import keras
from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.ops.attention_kernels import attend, attention_weights
from keras_vit.layers.ops.textbook import reshape_like, textbook_multiply
from keras_vit.layers.positions.relative_position_embedding import RelativePositionEmbedding
from keras_vit.layers.transformer.dropout import Dropout
from keras_vit.layers.transformer.layer_normalization import LayerNormalization


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(CompositeLayer):
    """Multi-head self-attention, with biases.

    For each head, `A = softmax(q k^T / sqrt(Dh))` and `SA = A v`; the heads are concatenated and projected
    (ViT, arXiv 2010.11929, eqs. 5 to 8). Kernels are kept by head, (D, K, Dh) and (K, Dh, D), as Google publishes
    them. Xavier uniform over the whole D x D matrix, zero biases. The softmax is computed in float32 under any
    precision policy. Few `queries` attend to the tokens themselves, `softmax((q W_k^T) x^T / sqrt(Dh)) x W_v`, which is
    the same without the keys and values of all tokens.

    Args:
        num_heads: Number K of heads. Divides D.
        dropout_rate: Dropout of the attention weights. In [0, 1).
        qk_norm: Whether a LayerNorm over each head's Dh channels normalises queries and keys (ViT-22B, arXiv
            2302.05442, section 2).
        layer_norm_epsilon: Added to the variance in these LayerNorms.
        relative_positions: Whether a `RelativePositionEmbedding` adds to the logits what the distances of the tokens
            say. The number of tokens is then fixed, and there are no other `queries`.

    Call arguments:
        tokens: (B, T, D), or (B, n, T, D) for n lines, each of which attends to itself.
        queries: (B, t, D), what asks; `None`: the tokens themselves.
        seed: What `draw_seed` returned; `None`: drawn in this call.
        training: Whether dropout acts.

    Returns:
        (B, T, D) or (B, n, T, D), as `tokens`; (B, t, D) with `queries`.

    Raises:
        ValueError: If D is not a multiple of `num_heads`, or relative positions are asked for with `queries` or for an
            unknown number of tokens.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.MultiHeadSelfAttention(num_heads=3)(keras.ops.ones((2, 7, 12))).shape)
    (2, 7, 12)
    """

    def __init__(
        self,
        num_heads,
        dropout_rate=0.0,
        qk_norm=False,
        layer_norm_epsilon=1e-6,
        relative_positions=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        self.dropout_rate = dropout_rate
        self.qk_norm = check_flag("qk_norm", qk_norm)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.relative_positions = check_flag("relative_positions", relative_positions)

    def build(self, tokens_shape, queries_shape=None):
        hidden_dim = tokens_shape[-1]
        if hidden_dim % self.num_heads:
            raise ValueError(
                f"The tokens' width must be a multiple of num_heads. Received: tokens of shape {tuple(tokens_shape)}, "
                f"num_heads={self.num_heads}"
            )
        self._lines = "bn"[: len(tokens_shape) - 2]
        self._head_width = hidden_dim // self.num_heads
        heads_shape = (*tokens_shape[:-1], self.num_heads, self._head_width)
        self.query = self._project_in("query", tokens_shape, heads_shape)
        self.key = self._project_in("key", tokens_shape, heads_shape)
        self.value = self._project_in("value", tokens_shape, heads_shape)
        if self.qk_norm:
            self.query_norm = self._normalize("query_norm", heads_shape)
            self.key_norm = self._normalize("key_norm", heads_shape)
        if self.relative_positions:
            if queries_shape is not None:
                raise ValueError("Relative positions are of tokens to each other: there can be no other queries.")
            self.relative_position = RelativePositionEmbedding(**self.part_arguments("relative_position"))
            self.relative_position.build(heads_shape)
        self.output_projection = keras.layers.EinsumDense(
            f"{self._lines}tkh,khd->{self._lines}td",
            output_shape=(*self._unknown_sizes, hidden_dim),
            bias_axes="d",
            kernel_initializer=_xavier_uniform(hidden_dim),
            **self.part_arguments("output"),
        )
        self.output_projection.build(heads_shape)
        self.dropout = Dropout(self.dropout_rate, **self.part_arguments("dropout"))
        self.dropout.build(heads_shape)

    @property
    def _unknown_sizes(self):
        """Of lines and tokens: there may be as many as there are in a call."""
        return (None,) * len(self._lines)

    def _project_in(self, name, input_shape, heads_shape):
        layer = keras.layers.EinsumDense(
            f"{self._lines}td,dkh->{self._lines}tkh",
            output_shape=(*self._unknown_sizes, *heads_shape[-2:]),
            bias_axes="kh",
            kernel_initializer=_xavier_uniform(input_shape[-1]),
            **self.part_arguments(name),
        )
        layer.build(input_shape)
        return layer

    def _normalize(self, name, heads_shape):
        layer = LayerNormalization(epsilon=self.layer_norm_epsilon, **self.part_arguments(name))
        layer.build(heads_shape)
        return layer

    def attention_weights(self, tokens, queries=None, sizes=None):
        """How much each token receives from every other, before dropout.

        Args:
            tokens: (B, T, D) or (B, n, T, D)
            queries: (B, t, D), what asks; `None`: the tokens themselves.
            sizes: (B, T), how many tokens each stands for, as in `attend_in_proportion`; `None`: one.

        Returns:
            (B, K, T, T) or (B, n, K, T, T); (B, K, t, T) with `queries`. float32; each row sums to one.
        """
        return self._weights(*self._queries_and_keys(tokens, queries), sizes)

    def _queries_and_keys(self, tokens, queries=None):
        """What asks and what answers: (B, K, t, Dh), scaled, and (B, K, T, Dh)."""
        asking = tokens if queries is None else queries
        if not self.qk_norm:
            return self._heads(self.query, asking, self._scale), self._heads(self.key, tokens)
        query, key = self._heads(self.query, asking), self._heads(self.key, tokens)
        return self.query_norm(query) * self._scale, self.key_norm(key)

    @property
    def _scale(self):
        """Of the queries."""
        return 1.0 / math.sqrt(self._head_width)

    def _heads(self, projection, tokens, scale=None):
        """(B, T, D) to (B, K, T, Dh)."""
        return ops.swapaxes(_multiply(projection, tokens, 1, scale), -3, -2)

    def _weights(self, query, key, sizes=None):
        bias = None if sizes is None else _log(sizes)[..., None, None, :]
        if self.relative_positions:
            relative = self.relative_position(ops.swapaxes(query, -3, -2))
            bias = relative if bias is None else bias + relative
        return attention_weights(query, key, bias)

    def draw_seed(self):
        """The seed of one call in training; `None` if nothing is ever dropped."""
        return self.dropout.draw_seed()

    def call(self, tokens, queries=None, seed=None, training=None):
        outputs, _ = self._attend(tokens, queries, None, seed, training)
        return outputs

    def attend_in_proportion(self, tokens, sizes=None, queries=None, seed=None, training=None):
        """As the layer's call, where a token may stand for several: `A = softmax(q k^T / sqrt(Dh) + log s)`.

        Proportional attention, ToMe (arXiv 2210.09461), eq. 1.

        Args:
            tokens: (B, T, D)
            sizes: (B, T), how many each stands for; `None`: one.
            queries: As of the call.
            seed: As of the call.
            training: As of the call.

        Returns:
            What the call returns, and the keys, (B, K, T, Dh); `None` where so few ask that there are none.
        """
        return self._attend(tokens, queries, sizes, seed, training)

    def _attend(self, tokens, queries, sizes, seed, training):
        if self._are_few(queries):
            return self._attend_few(tokens, queries, sizes, seed, training), None
        value = self._heads(self.value, tokens)
        query, key = self._queries_and_keys(tokens, queries)
        if self.relative_positions or (training and self.dropout_rate > 0):  # Of the weights themselves.
            weights = ops.cast(self._weights(query, key, sizes), value.dtype)
            heads = ops.matmul(self.dropout(weights, seed=seed, training=training), value)
        else:
            heads = attend(query, key, value, None if sizes is None else _log(sizes))
        return _multiply(self.output_projection, ops.swapaxes(heads, -3, -2), 2), key  # From (B, t, K, Dh).

    def _are_few(self, queries):
        """Whether `_attend_few` has half the products to compute at most."""
        if queries is None or queries.shape[-2] is None or self._lines != "b" or self.qk_norm:
            return False
        are_matrices = self.key.quantization_mode is None and self.value.quantization_mode is None
        return are_matrices and 2 * queries.shape[-2] <= self._head_width

    def _attend_few(self, tokens, queries, sizes, seed, training):
        """(B, t, D), without keys and values: with a head's W `q (x W)^T = (q W^T) x^T` and `A (x W) = (A x) W`."""
        tokens, key_kernel, key_bias, value_kernel, value_bias = (
            ops.cast(x, self.compute_dtype)
            for x in (tokens, self.key.kernel, self.key.bias, self.value.kernel, self.value.bias)
        )
        query = _multiply(self.query, queries, 1, self._scale)  # (B, t, K, Dh)
        by_head, width = query.shape[1:3], tokens.shape[-1]
        rows = (-1, math.prod(by_head))  # B, t K
        asking = ops.reshape(_multiply_heads(query, ops.transpose(key_kernel, (1, 2, 0))), (*rows, width))
        # The same for all tokens, so the softmax takes it away again; without it `key/bias` would have no gradient.
        bias = ops.cast(ops.reshape(ops.sum(query * key_bias, axis=-1), (*rows, 1)), "float32")
        bias = bias if sizes is None else bias + _log(sizes)[:, None, :]
        weights = ops.cast(attention_weights(asking, tokens, bias), tokens.dtype)  # (B, t K, T)
        weights = self.dropout(weights, seed=seed, training=training)
        received = ops.reshape(ops.matmul(weights, tokens), (-1, *by_head, width))
        share = ops.reshape(ops.sum(weights, axis=-1), (-1, *by_head, 1))  # Of the values' bias; one without dropout.
        heads = _multiply_heads(received, ops.transpose(value_kernel, (1, 0, 2))) + share * value_bias
        return _multiply(self.output_projection, heads, 2)

    def compute_output_shape(self, tokens_shape, queries_shape=None):
        return tokens_shape if queries_shape is None else queries_shape

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D) or (B, n, T, D)."""
        *lines, num_tokens, hidden_dim = input_shape[1:]
        products = 3 if self.relative_positions else 2
        return math.prod(lines) * (num_tokens * 4 * hidden_dim**2 + products * num_tokens**2 * hidden_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dropout_rate": self.dropout_rate,
            "qk_norm": self.qk_norm,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "relative_positions": self.relative_positions,
        }


def _log(sizes):
    return ops.log(ops.cast(sizes, "float32"))


def _xavier_uniform(hidden_dim):
    # Not "glorot_uniform": for a kernel kept by head, Keras takes the heads for a receptive field.
    limit = math.sqrt(6 / (hidden_dim + hidden_dim))
    return keras.initializers.RandomUniform(-limit, limit)


def _multiply_heads(values, kernels):
    """(B, t, K, x), each head's multiplied with its own of (K, x, y): (B, t, K, y)."""
    _, num_queries, num_heads, width = values.shape
    rows = ops.reshape(ops.transpose(values, (2, 0, 1, 3)), (num_heads, -1, width))  # (K, B t, x)
    products = ops.reshape(ops.matmul(rows, kernels), (num_heads, -1, num_queries, kernels.shape[-1]))
    return ops.transpose(products, (1, 2, 0, 3))


def _multiply(layer, inputs, num_axes, scale=None):
    """What an `EinsumDense` over the last axes of its inputs returns, times `scale`.

    Computed as the product of two matrices, for which TensorFlow on CPUs has a kernel that adds the bias too; an einsum
    is a batch of products of one matrix each. A layer in 8 bits computes as Keras has it.
    """
    if layer.quantization_mode is not None:
        outputs = layer(inputs)
        return outputs if scale is None else outputs * scale
    kernel, bias = (ops.cast(weight, layer.compute_dtype) for weight in (layer.kernel, layer.bias))
    outer_shape = kernel.shape[num_axes:]
    inner, multiply = math.prod(kernel.shape[:num_axes]), textbook_multiply()
    values = ops.cast(inputs, layer.compute_dtype)
    rows = reshape_like(values, inputs, num_axes, (inner,)) if multiply else ops.reshape(values, (-1, inner))
    kernel, bias = ops.reshape(kernel, (inner, -1)), ops.reshape(bias, (-1,))
    if scale is not None:  # Cheaper on the weights than on what is made of all tokens.
        kernel, bias = kernel * scale, bias * scale
    products = multiply(rows, kernel) if multiply else ops.matmul(rows, kernel)
    outputs = ops.add(products, bias)  # Not `+`: ops.add makes the addition that is joined.
    return reshape_like(outputs, inputs, num_axes, outer_shape)
