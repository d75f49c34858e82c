"""Tokens from learned filters. Shapes: B batch, H W C map, N = HW pixels, L tokens of CT channels."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.layers.convolutional.pointwise_convolution import build_projection
from keras_vit.layers.ops.maps import as_pixels
from keras_vit.layers.visual_tokens.tokenizer import Tokenizer


@keras.saving.register_keras_serializable(package="keras_vit")
class FilterTokenizer(Tokenizer):
    """Computes tokens as weighted means of the pixels X of a map, with one learned filter per token.

    `A = softmax_HW(X W_A)` and `T = A^T X` (Visual Transformers, arXiv 2006.03677, equation 1). If the
    tokens have another number of channels than the map, `T = (A^T (X W_V)) W_T`, and `W_V` projects groups of channels
    separately. In a `VTResNet`, the logits are divided
    by `sqrt(C)` and batch norms follow the projections. The softmax is computed in float32 under any precision policy.

    Args:
        num_tokens: Number L of tokens.
        token_dim: Number CT of channels of a token. `None`: C, without a projection.
        group_width: Number of channels in each group of `W_V`. `None`: one group.
        use_batch_norm: Whether a batch norm follows each projection, including `W_A`.
        scale_logits: Whether logits are divided by `sqrt(C)`.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.
        training: Whether the batch norms use the batch's statistics and update their moving averages.

    Returns:
        (B, L, CT)

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.FilterTokenizer(num_tokens=4)(keras.ops.ones((2, 5, 7, 6))).shape)
    (2, 4, 6)
    """

    def __init__(
        self,
        num_tokens: int,
        token_dim: int | None = None,
        group_width: int | None = None,
        use_batch_norm: bool = False,
        scale_logits: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(token_dim, group_width, use_batch_norm, **kwargs)
        self.num_tokens = check_positive_integer("num_tokens", num_tokens)
        self.scale_logits = check_flag("scale_logits", scale_logits)

    def build(self, input_shape):
        super().build(input_shape)
        self.filter = build_projection(self, "filter", input_shape[-1], self.num_tokens)

    def attention_weights(self, maps, training=None):
        """Returns the weights A, (B, 1, N, L). The weights of each token sum to 1 over the pixels."""
        logits = self.filter(as_pixels(maps), training=training)
        if self.scale_logits:
            logits = logits / math.sqrt(maps.shape[-1])
        return ops.expand_dims(ops.cast(ops.softmax(ops.cast(logits, "float32"), axis=1), logits.dtype), 1)

    def call(self, maps, training=None):
        return self._gather(maps, self.attention_weights(maps, training), training)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.num_tokens, self.token_dim or input_shape[-1])

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        return math.prod(input_shape[1:]) * self.num_tokens + self._gathering_macs(input_shape, self.num_tokens)
