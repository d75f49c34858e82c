"""Multi-head self-attention.

Shapes: B batch, n sequences per image, T tokens, t queries, D hidden, K heads, Dh = D / K.
"""

import functools
import math
import typing

import keras
from keras import ops

from keras_vit.architectures.rotary import RotaryConfig, as_rotary_config
from keras_vit.checks import check_choice, check_flag, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.attention_kernels import attention_weights, compute_attention, log_sizes
from keras_vit.layers.ops.layouts import apply_einsum_dense, reshape_like
from keras_vit.layers.ops.rotation import rotate
from keras_vit.layers.positions.relative_position_embedding import RelativePositionEmbedding
from keras_vit.layers.positions.rotary_frequencies import RotaryFrequencies
from keras_vit.layers.regularization.dropout import Dropout
from keras_vit.layers.transformer.layer_normalization import LayerNormalization


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(BaseLayer):
    """Multi-head self-attention.

    Each head computes `A = softmax(q k^T / sqrt(Dh))` and `SA = A v`. The heads are concatenated and projected (ViT,
    arXiv 2010.11929, eqs. 5 to 8). As in Google's weights, the kernels of queries, keys and values have the shape
    (D, K, Dh), and the kernel of the output has the shape (K, Dh, D). Kernels are initialised with the Xavier uniform
    distribution of a D x D matrix, biases with zeros. The softmax is computed in float32 under any precision policy.

    Args:
        num_heads: Number K of heads, a divisor of D.
        dropout_rate: Dropout rate of the attention weights. In [0, 1).
        qk_norm: Whether queries and keys are normalised by a LayerNorm over each head's Dh channels (ViT-22B, arXiv
            2302.05442, section 2).
        layer_norm_epsilon: Number that is added to the variance in the LayerNorms of queries and keys.
        qkv_bias: `"all"`: the projections to queries, keys and values have biases. `"no_key"`: queries and values have
            biases. `"none"`: none of the three has a bias. The output projection always has one.
        inner_norm: Whether there is a LayerNorm over the concatenated heads before their projection (sub-LN, arXiv
            2210.06423).
        rotary: `keras_vit.RotaryConfig`: queries and keys are rotated by angles that depend on the position. The call
            argument `positions` is then required. `None`: no rotation.
        relative_positions: Whether a `RelativePositionEmbedding` adds a term to each logit. The term depends on the
            offset between the two tokens. The number of tokens is then fixed, and `queries` must be `None`.

    Call arguments:
        tokens: (B, T, D), or (B, n, T, D) for n sequences per image. A token attends only to tokens of its sequence.
        queries: (B, t, D), tokens that attend to `tokens`. `None`: `tokens` attend to each other.
        positions: Output of a `RotaryPositionEmbedding` for the T tokens. If `queries` are given too, they must be
            the first t tokens. `None` without `rotary`.
        sizes: (B, T) integers s, the number of patches that each token represents. The weights are
            `A = softmax(q k^T / sqrt(Dh) + log s)` (ToMe, arXiv 2210.09461, eq. 1). `None`: all sizes are 1.
        attention_mask: Booleans (B, t, T), whether each token attends to each other token, the same for all heads.
            Each token must attend to at least one. `None`: all tokens attend to all tokens.
        training: Whether dropout is applied.

    Returns:
        (B, t, D) with `queries`, otherwise the same shape as `tokens`.

    Raises:
        ValueError: If an argument is invalid; if D is not a multiple of `num_heads`; if relative positions are combined
            with `queries`, with rotary positions or with an unknown number of tokens; or if `positions` do not fit
            `rotary`.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.MultiHeadSelfAttention(num_heads=3)(keras.ops.ones((2, 7, 12))).shape)
    (2, 7, 12)
    """

    def __init__(
        self,
        num_heads: int,
        dropout_rate: float = 0.0,
        qk_norm: bool = False,
        layer_norm_epsilon: float = 1e-6,
        relative_positions: bool = False,
        qkv_bias: str = "all",
        inner_norm: bool = False,
        rotary: RotaryConfig | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False  # Autocast would also round the positions.
        self.num_heads = check_positive_integer("num_heads", num_heads)
        self.dropout_rate = dropout_rate
        self.qk_norm = check_flag("qk_norm", qk_norm)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.relative_positions = check_flag("relative_positions", relative_positions)
        self.qkv_bias = check_choice("qkv_bias", qkv_bias, ("all", "no_key", "none"))
        self.inner_norm = check_flag("inner_norm", inner_norm)
        self.rotary = None if rotary is None else as_rotary_config(rotary)
        if self.relative_positions and self.rotary is not None:
            raise ValueError(f"relative_positions=True needs rotary=None. Received: rotary={self.rotary}")

    def build(self, tokens_shape, queries_shape=None):
        hidden_dim = tokens_shape[-1]
        if hidden_dim % self.num_heads:
            raise ValueError(
                f"The tokens' width must be a multiple of num_heads. Received: tokens of shape {tuple(tokens_shape)}, "
                f"num_heads={self.num_heads}"
            )
        self._key_dim = hidden_dim // self.num_heads
        heads_shape = (*tokens_shape[:-1], self.num_heads, self._key_dim)
        self.query, self.key, self.value = (
            self._dense(name, "{0}td,dkh->{0}tkh", "kh" if has_bias else None, tokens_shape, heads_shape[-2:])
            for name, has_bias in zip(("query", "key", "value"), _HAS_BIAS[self.qkv_bias], strict=True)
        )
        norm = functools.partial(LayerNormalization, self.layer_norm_epsilon)
        if self.qk_norm:
            self.query_norm = self.build_part(norm, "query_norm", heads_shape)
            self.key_norm = self.build_part(norm, "key_norm", heads_shape)
        if self.rotary is not None and self.rotary.kind == "mixed":
            arguments = self.rotary, self.num_heads, self._key_dim
            self.rotary_frequencies = self.build_part(RotaryFrequencies, "rotary", (2, tokens_shape[-2]), *arguments)
        if self.relative_positions:
            if queries_shape is not None:
                raise ValueError("With relative positions, all tokens attend to each other, so queries must be None.")
            self.relative_position = self.build_part(RelativePositionEmbedding, "relative_position", heads_shape)
        if self.inner_norm:
            self.heads_norm = self.build_part(norm, "inner_norm", tokens_shape)
        self.output_projection = self._dense("output", "{0}tkh,khd->{0}td", "d", heads_shape, tokens_shape[-1:])
        self.dropout = self.build_part(Dropout, "dropout", heads_shape, self.dropout_rate)

    def _dense(self, name, equation, bias_axes, input_shape, outer_shape):
        # "glorot_uniform" cannot be used, because Keras would treat the head axis of the kernel as a receptive field.
        limit = math.sqrt(6 / (2 * self.num_heads * self._key_dim))
        num_kernel_axes = 3 - len(outer_shape)
        batch_axes = "bn"[: len(input_shape) - num_kernel_axes - 1]
        return self.build_part(
            keras.layers.EinsumDense,
            name,
            input_shape,
            equation.format(batch_axes),
            output_shape=(*[None] * len(batch_axes), *outer_shape),  # `None` allows any number of sequences and tokens.
            bias_axes=bias_axes,
            kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
        )

    def call(self, tokens, queries=None, sizes=None, positions=None, attention_mask=None, training=None):
        query, key = self.queries_and_keys(tokens, queries, positions)  # q and k of eq. 5
        return self.attend(query, key, tokens, sizes, attention_mask, training)  # eqs. 6 to 8

    def queries_and_keys(self, tokens, queries=None, positions=None):
        """Returns the scaled and rotated queries, (B, K, t, Dh), and the rotated keys, (B, K, T, Dh)."""
        self._check_positions(positions)
        scale = 1.0 / math.sqrt(self._key_dim)
        query = self._heads(self.query, tokens if queries is None else queries, None if self.qk_norm else scale)
        key = self._heads(self.key, tokens)
        if self.qk_norm:
            query, key = self.query_norm(query) * scale, self.key_norm(key)
        return (query, key) if self.rotary is None else self._rotated(query, key, positions, self.rotary)

    @property
    def has_plain_scores(self):
        """Whether a score is only the scaled product of a query and a key, which are both linear in their tokens."""
        return not self.qk_norm and not self.relative_positions and self.rotary is None

    def _check_positions(self, positions):
        expected = None if self.rotary is None else {"axial": (self._key_dim,), "mixed": ()}[self.rotary.kind]
        received = None if positions is None else tuple(positions.shape)
        if (received and received[2:]) != expected:
            raise ValueError(
                f"With rotary, positions must be the output of a keras_vit.layers.RotaryPositionEmbedding with the "
                f"same rotary and key_dim={self._key_dim}. Without rotary, they must be None. Received: rotary="
                f"{self.rotary}, positions of shape {received}"
            )

    def _rotated(self, query, key, positions, rotary):
        factors = self.rotary_frequencies(positions) if rotary.kind == "mixed" else positions
        query_factors = factors
        if query.shape[-2] != key.shape[-2]:
            # After the reshape, TensorFlow knows the number of queries even if the number of tokens is unknown.
            shape = (*factors.shape[:-2], query.shape[-2], factors.shape[-1])
            query_factors = ops.reshape(factors[..., : query.shape[-2], :], shape)
        return rotate(query, query_factors, rotary.layout), rotate(key, factors, rotary.layout)

    def attend(self, query, key, tokens, sizes=None, attention_mask=None, training=None):
        """Returns the layer's output, (B, t, D), for queries and keys from `queries_and_keys`."""
        value = self._heads(self.value, tokens)  # v of eq. 5
        if self.relative_positions or attention_mask is not None or (training and self.dropout_rate > 0):
            weights = ops.cast(self._weights(query, key, sizes, attention_mask), value.dtype)  # A of eq. 6
            heads = ops.matmul(self.dropout(weights, training=training), value)  # A v of eq. 7
        else:  # Eqs. 6 and 7 at once. This supports neither relative positions nor masks nor dropout.
            heads = compute_attention(query, key, value, log_sizes(sizes))
        return self.project(ops.swapaxes(heads, -3, -2))  # eq. 8

    def project(self, heads):
        """Concatenates and projects the heads' outputs (B, t, K, Dh) to (B, t, D)."""
        if self.inner_norm:
            joined = reshape_like(heads, heads, 2, (self.num_heads * self._key_dim,))
            heads = reshape_like(self.heads_norm(joined), heads, 2, heads.shape[-2:])
        return apply_einsum_dense(self.output_projection, heads, 2)

    def _heads(self, projection, tokens, scale=None):
        """Projects (B, T, D) to (B, K, T, Dh)."""
        return ops.swapaxes(apply_einsum_dense(projection, tokens, 1, scale), -3, -2)

    def _weights(self, query, key, sizes=None, attention_mask=None):
        terms = [] if sizes is None else [log_sizes(sizes)[..., None, None, :]]
        if self.relative_positions:
            terms.append(self.relative_position(ops.swapaxes(query, -3, -2)))
        if attention_mask is not None:
            terms.append(ops.where(attention_mask[..., None, :, :], 0.0, _MASKED))
        return attention_weights(query, key, functools.reduce(ops.add, terms) if terms else None)

    def attention_weights(self, tokens, queries=None, sizes=None, positions=None):
        """Returns the attention weights A, before dropout.

        Args:
            tokens: As in `call`.
            queries: As in `call`.
            sizes: As in `call`.
            positions: As in `call`.

        Returns:
            float32 (B, K, T, T), (B, n, K, T, T) for n sequences per image, or (B, K, t, T) with `queries`. Each row
            sums to one.
        """
        query, key = self.queries_and_keys(tokens, queries, positions)
        return self._weights(query, key, sizes)

    def compute_output_shape(self, tokens_shape, queries_shape=None):
        return tokens_shape if queries_shape is None else queries_shape

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, T, D) or (B, n, T, D)."""
        *num_sequences, num_tokens, hidden_dim = input_shape[1:]
        products = 3 if self.relative_positions else 2
        return math.prod(num_sequences) * (num_tokens * 4 * hidden_dim**2 + products * num_tokens**2 * hidden_dim)


_MASKED = -1e9  # Added to the logits of tokens that are not attended to. Infinity would lead to NaN in gradients.
_HAS_BIAS = {"all": (True, True, True), "no_key": (True, False, True), "none": (False, False, False)}
"""{value of `qkv_bias`: whether queries, keys and values have a bias}"""
