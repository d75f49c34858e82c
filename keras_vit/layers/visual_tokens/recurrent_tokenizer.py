"""Tokens that depend on earlier tokens. Shapes: B batch, H W C map, N = HW pixels, K heads, L tokens of CT channels."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.convolutional.pointwise_convolution import build_projection, num_groups_of
from keras_vit.layers.ops.maps import as_pixels
from keras_vit.layers.visual_tokens.heads import attention_weights
from keras_vit.layers.visual_tokens.tokenizer import Tokenizer


@keras.saving.register_keras_serializable(package="keras_vit")
class RecurrentTokenizer(Tokenizer):
    """Computes tokens as weighted means of the pixels X of a map. The previous module's tokens determine the weights.

    `W_R = T_in W_{T->R}`, `A = softmax_HW(X W_R)` and `T = A^T X` (Visual Transformers, arXiv 2006.03677, equation 2).
    If CT is not C, `T = (A^T (X W_V)) W_T`. In a `VTResNet`, pixels are also projected by `W_K`, in groups of channels:
    `A = softmax_HW((X W_K) W_R / sqrt(C / K))` with K heads. Batch norms follow the projections. The softmax is
    computed in float32 under any precision policy.

    With `split_tokens`, the filters `W_R` are computed from only the first half of the tokens. The output is the second
    half, unchanged, followed by the new tokens. Each token is therefore used in two modules. The code in the paper's
    first version works the same way.

    Args:
        token_dim: Number CT of channels of a token. `None`: C, without `W_V` and `W_T`.
        num_heads: Number K of heads, a divisor of C.
        group_width: Number of channels in each group of `W_K` and `W_V`. `None`: there is no `W_K`, and `W_V` has one
            group.
        use_batch_norm: Whether a batch norm follows each projection.
        scale_logits: Whether logits are divided by `sqrt(C / K)`.
        split_tokens: Whether half of the tokens stays unchanged.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.
        tokens: (B, L, CT), tokens of the previous module. With `split_tokens`, L is even.
        training: Whether the batch norms use the batch's statistics and update their moving averages.

    Returns:
        (B, L, CT)

    Raises:
        ValueError: If an argument is invalid or does not fit the shapes.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.RecurrentTokenizer()
    >>> tuple(layer(keras.ops.ones((2, 5, 7, 6)), keras.ops.ones((2, 4, 6))).shape)
    (2, 4, 6)
    """

    def __init__(
        self,
        token_dim: int | None = None,
        num_heads: int = 1,
        group_width: int | None = None,
        use_batch_norm: bool = False,
        scale_logits: bool = False,
        split_tokens: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(token_dim, group_width, use_batch_norm, **kwargs)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        self.scale_logits = check_flag("scale_logits", scale_logits)
        self.split_tokens = check_flag("split_tokens", split_tokens)

    def build(self, maps_shape, tokens_shape):  # type: ignore[override]
        channels, (_, num_tokens, token_dim) = maps_shape[-1], tokens_shape
        if channels % self.num_heads:
            raise ValueError(f"num_heads must divide the {channels} channels. Received: num_heads={self.num_heads}")
        if token_dim != (self.token_dim or channels):
            raise ValueError(
                f"{self.name!r} makes tokens of {self.token_dim or channels} channels, so its input tokens must have "
                f"as many channels. Received: tokens of shape {tuple(tokens_shape)}"
            )
        if self.split_tokens and (num_tokens is None or num_tokens % 2):
            raise ValueError(f"split_tokens needs a known, even number of tokens. Received: {num_tokens}")
        super().build(maps_shape)
        self.query = build_projection(self, "query", token_dim, channels)
        self.key = None
        if self.group_width is not None:
            self.key = build_projection(self, "key", channels, channels, num_groups_of(channels, self.group_width))

    def attention_weights(self, maps, tokens, training=None):
        """Returns A, (B, K, N, L) or, with `split_tokens`, (B, K, N, L / 2). The weights sum to 1 over the pixels."""
        filter_tokens, _ = self._halves(tokens)
        keys = as_pixels(maps)
        if self.key is not None:
            keys = self.key(keys, training=training)
        queries = self.query(filter_tokens, training=training)
        return attention_weights(keys, queries, self.num_heads, self.scale_logits, axis=-2)

    def _halves(self, tokens):
        """Returns the tokens from which `W_R` is computed, and the tokens that stay unchanged (`None` if not split)."""
        return ops.split(tokens, 2, axis=1) if self.split_tokens else (tokens, None)

    def call(self, maps, tokens, training=None):
        gathered = self._gather(maps, self.attention_weights(maps, tokens, training), training)
        _, unchanged = self._halves(tokens)
        return gathered if unchanged is None else ops.concatenate([unchanged, gathered], axis=1)

    def compute_output_shape(self, maps_shape, tokens_shape):
        return tokens_shape

    def macs(self, maps_shape, tokens_shape):
        """Multiply-accumulates for one image of batches of shape (B, H, W, C) and (B, L, CT)."""
        num_tokens = tokens_shape[1] // (2 if self.split_tokens else 1)
        pixels_shape = (None, math.prod(maps_shape[1:-1]), maps_shape[-1])
        total = self.query.macs((None, num_tokens, tokens_shape[2])) + math.prod(pixels_shape[1:]) * num_tokens
        if self.key is not None:
            total += self.key.macs(pixels_shape)
        return total + self._gathering_macs(maps_shape, num_tokens)
