"""One residual unit of a ResNet. Shapes: B batch, H W C map, h w output map."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_choice, check_flag, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.attention_augmented_conv2d import AttentionAugmentedConv2D
from keras_vit.layers.convolutional.convolutional_block_attention import ConvolutionalBlockAttention
from keras_vit.layers.convolutional.local_relation import LocalRelation
from keras_vit.layers.convolutional.local_self_attention import LocalSelfAttention
from keras_vit.layers.convolutional.padded_conv2d import PaddedConv2D
from keras_vit.layers.convolutional.parts import batch_norm, build_in_turn, macs_in_turn
from keras_vit.layers.convolutional.squeeze_excitation import SqueezeExcitation
from keras_vit.layers.ops.maps import strided_shape
from keras_vit.layers.regularization.drop_path import DropPath

MIXINGS = ("convolution", "attention_augmented", "pooled_attention_augmented", "stand_alone", "local_relation")
_ATTENTIONS = {"squeeze_excitation": SqueezeExcitation, "cbam": ConvolutionalBlockAttention}


@keras.saving.register_keras_serializable(package="keras_vit")
class ResidualUnit(BaseLayer):
    """Convolutions with batch norms and a residual connection.

    With an expansion of 4, the unit is a bottleneck: `y = relu(BN(conv1x1(x)))`, `y = relu(BN(conv3x3(y)))`,
    `y = BN(conv1x1(y))`. With an expansion of 1, it is a basic unit: `y = relu(BN(conv3x3(x)))`, `y = BN(conv3x3(y))`.
    The output is `relu(x + y)`. If the unit changes the shape, `x` is projected by `BN(conv1x1(x))` ("Deep Residual
    Learning for Image Recognition", arXiv 1512.03385; `resnet.py` of torchvision). The padding is equal on both sides.
    The gamma of the last batch norm starts at zero, so the output of the branch is zero before training.

    Args:
        width: Number of channels inside the unit. The output has `expansion * width` channels.
        strides: Step in pixels, the same for both axes.
        expansion: 4 (bottleneck) or 1 (basic unit).
        strides_first: Whether the first convolution of a bottleneck applies the strides, instead of the second.
        drop_path_rate: Probability of dropping the branch of an image in training. In [0, 1).
        mixing: Layer that replaces the 3 x 3 convolutions.

            * `"convolution"`: the convolutions are not replaced.
            * `"attention_augmented"`: `AttentionAugmentedConv2D`. A basic unit keeps its second convolution.
            * `"pooled_attention_augmented"`: the same layer with `is_pooled=True`.
            * `"stand_alone"`: `LocalSelfAttention`.
            * `"local_relation"`: `LocalRelation`. With this layer, a bottleneck has an inner width of 25 / 16 `width`.
        attention: Layer that multiplies the branch by attention factors before the branch is added to `x`.
            `"squeeze_excitation"`: `SqueezeExcitation`. `"cbam"`: `ConvolutionalBlockAttention`. `None`: no layer.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built, unless the unit contains an
            `AttentionAugmentedConv2D`.
        training: Whether the batch norms use the batch's statistics and update their moving averages, and whether
            branches are dropped.

    Returns:
        (B, h, w, expansion * width), where h and w are H and W divided by `strides` and rounded up.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.ResidualUnit(width=6, strides=2)(keras.ops.ones((2, 5, 8, 4))).shape)
    (2, 3, 4, 24)
    """

    def __init__(
        self,
        width: int,
        strides: int = 1,
        expansion: int = 4,
        strides_first: bool = False,
        drop_path_rate: float = 0.0,
        mixing: str = "convolution",
        attention: str | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.width = check_positive_integer("width", width)
        self.strides = check_positive_integer("strides", strides)
        if isinstance(expansion, bool) or expansion not in (1, 4):
            raise ValueError(f"expansion must be 4 (bottleneck) or 1 (basic unit). Received: {expansion!r}")
        self.expansion = expansion
        self.strides_first = check_flag("strides_first", strides_first)
        self.drop_path_rate = drop_path_rate
        self.mixing = check_choice("mixing", mixing, MIXINGS)
        self.attention = check_choice("attention", attention, (None, *_ATTENTIONS))
        self.drop_path = DropPath(drop_path_rate, **self.part_arguments("drop_path"))
        self.convs = self._bottleneck() if expansion == 4 else self._basic_unit()
        last = len(self.convs)
        self.norms = [
            batch_norm(gamma_initializer="zeros" if number == last else "ones", **self.part_arguments(f"norm_{number}"))
            for number in range(1, 1 + last)
        ]
        self.gate = None if attention is None else _ATTENTIONS[attention](**self.part_arguments("gate"))
        self.projection_conv: typing.Any = None
        self.projection_norm: typing.Any = None

    def _bottleneck(self):
        early, late = (self.strides, 1) if self.strides_first else (1, self.strides)
        inner = self.width * 25 // 16 if self.mixing == "local_relation" else self.width
        return [
            PaddedConv2D(inner, 1, early, **self.part_arguments("conv_1")),
            self._spatial(self.mixing, 2, inner, late),
            PaddedConv2D(4 * self.width, 1, **self.part_arguments("conv_3")),
        ]

    def _basic_unit(self):
        # With one augmented convolution per unit, AA-ResNet34 has the number of parameters that the paper reports.
        second = "convolution" if "attention_augmented" in self.mixing else self.mixing
        return [self._spatial(self.mixing, 1, self.width, self.strides), self._spatial(second, 2, self.width, 1)]

    def _spatial(self, mixing, number, filters, strides):
        """Creates the layer that a mixing names. It maps (B, H, W, C) to (B, h, w, F) with F `filters`."""
        if mixing == "convolution":
            return PaddedConv2D(filters, 3, strides, **self.part_arguments(f"conv_{number}"))
        arguments = {"strides": strides, **self.part_arguments(f"mixing_{number}")}
        if mixing == "stand_alone":
            return LocalSelfAttention(filters, num_heads=_NUM_HEADS, **arguments)
        if mixing == "local_relation":
            return LocalRelation(filters, **arguments)
        key_share, value_share = _SHARES_OF_BOTTLENECK if self.expansion == 4 else _SHARES_OF_BASIC_UNIT
        key_dim = max(_MIN_KEY_DIM * _NUM_HEADS, _whole_heads(key_share * filters))
        sizes = filters, key_dim, _whole_heads(value_share * filters), _NUM_HEADS
        return AttentionAugmentedConv2D(*sizes, is_pooled=mixing.startswith("pooled"), **arguments)

    def build(self, input_shape):
        if input_shape[-1] != self.expansion * self.width or self.strides != 1:
            arguments = self.part_arguments("projection_conv")
            self.projection_conv = PaddedConv2D(self.expansion * self.width, 1, self.strides, **arguments)
            self.projection_norm = batch_norm(**self.part_arguments("projection_norm"))
            build_in_turn((self.projection_conv, self.projection_norm), input_shape)
        build_in_turn([layer for pair in zip(self.convs, self.norms, strict=True) for layer in pair], input_shape)
        if self.gate is not None:
            self.gate.build(self.compute_output_shape(input_shape))

    def call(self, maps, training=None):
        branch = maps
        for conv, norm in zip(self.convs, self.norms, strict=True):
            branch = norm(conv(branch), training=training)
            if norm is not self.norms[-1]:
                branch = ops.relu(branch)
        if self.gate is not None:
            branch = self.gate(branch)  # Keras passes `training` to layers that have this argument.
        if self.projection_conv is not None:
            maps = self.projection_norm(self.projection_conv(maps), training=training)
        return ops.relu(maps + self.drop_path(branch, training=training))

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, self.strides, self.expansion * self.width)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        total = 0 if self.projection_conv is None else self.projection_conv.macs(input_shape)
        total += macs_in_turn(self.convs, input_shape)
        return total if self.gate is None else total + self.gate.macs(self.compute_output_shape(input_shape))


_NUM_HEADS = 8  # The papers on augmented and stand-alone attention use 8 heads for any width.
_MIN_KEY_DIM = 20  # Minimum number of key channels per head of an augmented convolution.
# (`key_dim`, `value_dim`) of an augmented convolution, as fractions of `filters`.
_SHARES_OF_BOTTLENECK = (0.2, 0.1)
_SHARES_OF_BASIC_UNIT = (0.25, 0.25)


def _whole_heads(channels):
    """Rounds a number of channels to a multiple of the number of heads, with at least one channel per head."""
    return _NUM_HEADS * max(1, round(channels / _NUM_HEADS))
