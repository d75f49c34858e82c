"""One residual unit of SAN. Shapes: B batch, H W C map."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_choice
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.pairwise_self_attention import PairwiseSelfAttention
from keras_vit.layers.convolutional.parts import batch_norm, build_dense
from keras_vit.layers.convolutional.patchwise_self_attention import PatchwiseSelfAttention

_ATTENTIONS = {"pairwise": PairwiseSelfAttention, "patchwise": PatchwiseSelfAttention}


@keras.saving.register_keras_serializable(package="keras_vit")
class SelfAttentionUnit(BaseLayer):
    """The residual unit of SAN, with attention in windows.

    `x + W relu(BN(attention(relu(BN(x)))))` ("Exploring Self-Attention for Image Recognition", arXiv 2004.13621, Figure
    1). The output of the attention has C / 4 channels. `W` has a bias, as in the authors' code (hszhao/SAN).

    Args:
        relation: `"pairwise"` for `PairwiseSelfAttention`, `"patchwise"` for `PatchwiseSelfAttention`.
        window_size: Side of a window in pixels, odd.

    Call arguments:
        maps: (B, H, W, C), channels last. C must be a multiple of 32. H and W must be more than half of
            `window_size`. They may be unknown when the model is built.
        training: Whether the batch norms use the batch's statistics and update their moving averages.

    Returns:
        Same shape as `maps`.

    Raises:
        ValueError: If an argument is invalid, if C is not a multiple of 32, or if H or W is too small.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.SelfAttentionUnit("patchwise", window_size=3)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 32))).shape)
    (2, 5, 8, 32)
    """

    def __init__(self, relation: str, window_size: int = 7, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.relation = check_choice("relation", relation, _ATTENTIONS)
        self.window_size = window_size
        self.norm_1, self.norm_2 = (batch_norm(**self.part_arguments(f"norm_{number}")) for number in (1, 2))

    def build(self, input_shape):
        channels = input_shape[-1]
        if channels % 32:
            raise ValueError(
                f"{self.name!r} uses a quarter of the channels for attention, in groups of eight. The number of "
                f"channels must be a multiple of 32. Received: {channels} channels"
            )
        self.attention = _ATTENTIONS[self.relation](channels // 4, self.window_size, **self.part_arguments("attention"))
        self.norm_1.build(input_shape)
        self.attention.build(input_shape)
        self.norm_2.build((*input_shape[:-1], channels // 4))
        self.projection = build_dense(self, "projection", channels // 4, channels, use_bias=True)

    def call(self, maps, training=None):
        branch = ops.relu(self.norm_1(maps, training=training))
        branch = self.attention(branch, training=training)
        return maps + self.projection(ops.relu(self.norm_2(branch, training=training)))

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, channels = input_shape
        return self.attention.macs(input_shape) + height * width * channels * channels // 4
