"""The stems of hybrids: `StemConfig`, a ResNet, and `ConvStemConfig`, a few convolutions."""

import dataclasses
import functools
import math

from keras_vit.architectures.base import Config, optional, setting
from keras_vit.checks import check_epsilon, check_group_width, check_sizes

FIRST_KERNELS = ("stem_conv/kernel", "stem_conv_0/kernel", "patch_embedding/kernel")
"""Paths of a kernel that is applied to pixels. The first of them that a model has is this kernel."""


@dataclasses.dataclass(frozen=True)
class StemConfig(Config):
    """The convolutional stem of a hybrid: a ResNet. The patches are cut from its feature map, not from the image.

    The ResNet has weight-standardised convolutions, GroupNorm, and units that end with the activation (ViT, arXiv
    2010.11929, section 3.1, "Hybrid Architecture"; `models_resnet.py` of its code).

    Args:
        stage_depths: Number of units in each stage, such as `(3, 4, 9)`. Empty: the stem is only a convolution and a
            max-pooling.
        width: Channels of the first convolution. Stage s has `width * 2**s` inner channels and four times as many
            output channels.
        group_norm_epsilon: Number in [1e-15, 1] that is added to the variance in every GroupNorm.
        weight_standardization_epsilon: Number in [1e-15, 1] that is added to the standard deviation of every kernel.

    Raises:
        ValueError: If a value is invalid.

    Example:

    >>> import keras_vit
    >>> keras_vit.StemConfig(stage_depths=(3, 4, 9)).stride
    16
    """

    stage_depths: tuple[int, ...] = setting(functools.partial(check_sizes, smallest_length=0))
    width: int = setting(check_group_width, 64)
    group_norm_epsilon: float = setting(check_epsilon, 1e-6)
    weight_standardization_epsilon: float = setting(check_epsilon, 1e-5)

    @property
    def stride(self):
        """Stride of the feature map in pixels of the image."""
        return 4 * 2 ** max(len(self.stage_depths) - 1, 0)


@dataclasses.dataclass(frozen=True)
class ConvStemConfig(Config):
    """The convolutional stem of arXiv 2106.14881, section 4: a few 3 x 3 convolutions, each with batch norm and ReLU.

    The patches are cut from its feature map. With `patch_size=1`, as in the paper, the patch embedding is the 1 x 1
    convolution at the end of the paper's stem. The recipe `cifar10_hour` has such a stem. No published weights have it.

    Args:
        widths: Number of channels of each convolution.
        strides: Stride of each convolution, 1 or 2. `None`: all strides are 2.

    Raises:
        ValueError: If a value is invalid.

    Example:

    >>> import keras_vit
    >>> keras_vit.ConvStemConfig(widths=(24, 48, 96, 192)).stride
    16
    """

    widths: tuple[int, ...] = setting(functools.partial(check_sizes, smallest_length=0))
    strides: tuple[int, ...] | None = setting(optional(functools.partial(check_sizes, smallest_length=0)), None)

    def check_combinations(self):
        widths, strides = self.widths, self.strides
        if not widths:
            raise ValueError("widths must contain at least one number. For a model without a stem, set stem=None.")
        if strides is not None and (not {*strides} <= {1, 2} or len(strides) != len(widths)):
            raise ValueError(f"strides must contain 1 or 2 for each of the {len(widths)} widths. Received: {strides}")

    @property
    def convolutions(self):
        """A pair (width, stride) for each convolution."""
        return tuple(zip(self.widths, self.strides or (2,) * len(self.widths), strict=True))

    @property
    def stride(self):
        """Stride of the feature map in pixels of the image."""
        return math.prod(stride for _, stride in self.convolutions)
