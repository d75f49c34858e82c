"""Base class of tokenizers. Shapes: B batch, H W C map, N = HW pixels, K heads, L tokens of CT channels."""

import math
import typing

from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.pointwise_convolution import build_projection, num_groups_of
from keras_vit.layers.ops.maps import as_pixels
from keras_vit.layers.visual_tokens.heads import join_heads, split_heads


class Tokenizer(BaseLayer):
    """A layer that computes tokens as weighted means of the pixels of a map, `T = A^T X`.

    Subclasses compute the weights A. If the number CT of channels of a token is not the number C of channels of the
    map, the layer projects the map and the tokens: `T = (A^T (X W_V)) W_T`.

    Args:
        token_dim: Number CT of channels of a token. `None`: the same as C, without projections.
        group_width: Number of channels per group of `W_V` (and of `W_K` in a `RecurrentTokenizer`). `None`: one group.
        use_batch_norm: Whether a batch norm follows each projection.
    """

    def __init__(
        self,
        token_dim: int | None = None,
        group_width: int | None = None,
        use_batch_norm: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.token_dim = token_dim if token_dim is None else check_positive_integer("token_dim", token_dim)
        self.group_width = group_width if group_width is None else check_positive_integer("group_width", group_width)
        self.use_batch_norm = check_flag("use_batch_norm", use_batch_norm)
        self.value = self.projection = None

    def build(self, maps_shape):
        channels = maps_shape[-1]
        if self.token_dim not in (None, channels):
            num_groups = num_groups_of(channels, self.group_width)
            self.value = build_projection(self, "value", channels, channels, num_groups)
            self.projection = build_projection(self, "projection", channels, self.token_dim)

    def _gather(self, maps, weights, training):
        """Computes tokens (B, L, CT) from maps (B, H, W, C) and weights (B, K, N, L)."""
        values = as_pixels(maps)
        if self.value is not None:
            values = self.value(values, training=training)
        tokens = join_heads(ops.matmul(ops.swapaxes(weights, 2, 3), split_heads(values, weights.shape[1])))
        return tokens if self.projection is None else self.projection(tokens, training=training)

    def _gathering_macs(self, maps_shape, num_tokens):
        """Multiply-accumulates of `_gather` for one image."""
        pixels_shape = (None, math.prod(maps_shape[1:-1]), maps_shape[-1])
        total = math.prod(pixels_shape[1:]) * num_tokens
        if self.value is not None:
            total += self.value.macs(pixels_shape) + self.projection.macs((None, num_tokens, maps_shape[-1]))
        return total
