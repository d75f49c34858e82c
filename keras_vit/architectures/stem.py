"""`StemConfig`, the convolutional stem of a hybrid."""

import dataclasses

from keras_vit.checks import check_epsilon, check_positive_integer


@dataclasses.dataclass(frozen=True)
class StemConfig:
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

    stage_depths: tuple[int, ...]
    width: int = 64
    group_norm_epsilon: float = 1e-6
    weight_standardization_epsilon: float = 1e-5

    def __post_init__(self):
        if not isinstance(self.stage_depths, (tuple, list)):
            raise ValueError(f"stage_depths must be a tuple of integers. Received: {self.stage_depths!r}")
        depths = tuple(check_positive_integer("stage_depths", depth) for depth in self.stage_depths)
        object.__setattr__(self, "stage_depths", depths)
        if check_positive_integer("width", self.width) % 32:
            raise ValueError(f"width must be a multiple of 32, the number of groups. Received: {self.width}")
        for field in ("group_norm_epsilon", "weight_standardization_epsilon"):
            check_epsilon(field, getattr(self, field))

    @property
    def stride(self):
        """Stride of the feature map in pixels of the image."""
        return 4 * 2 ** max(len(self.stage_depths) - 1, 0)
