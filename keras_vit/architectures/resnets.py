"""The configs of ResNets."""

import dataclasses

from keras_vit.architectures.base import Architecture, setting
from keras_vit.checks import check_flag, check_group_width, check_rate, check_size, check_sizes


@dataclasses.dataclass(frozen=True)
class _ResNetConfig(Architecture):
    stage_depths: tuple[int, ...] = setting(check_sizes)
    width: int = setting(check_size, 64)

    @property
    def total_stride(self):
        """Stride of the last map in pixels of the image, (height, width)."""
        stride = 4 * 2 ** (len(self.stage_depths) - 1)
        return stride, stride


@dataclasses.dataclass(frozen=True)
class BiTResNetConfig(_ResNetConfig):
    """A BiT-ResNet (arXiv 1912.11370): a ResNet-V2 with GroupNorm and weight-standardised convolutions.

    Args:
        stage_depths: Number of units in each stage, such as `(3, 4, 6, 3)`.
        width: Channels of the stem, a multiple of 32. Stage s has `4 * width * 2**s` output channels.
        stem_pooling_padding: Padding of the stem's max-pooling, `"zeros"` or `"ignored"`, as in `keras_vit.BiTResNet`.

    Raises:
        ValueError: If a value is invalid.
    """

    kind = "bit_resnet"
    title = "BiT-ResNet"
    loads = ("bit_resnet",)

    width: int = setting(check_group_width, 64)
    stem_pooling_padding: str = setting(("zeros", "ignored"), "zeros")


@dataclasses.dataclass(frozen=True)
class AxialResNetConfig(_ResNetConfig):
    """An AxialResNet (arXiv 2003.07853): a ResNet with axial attention in place of its 3 x 3 convolutions.

    Args:
        stage_depths: Number of units in each stage, such as `(3, 4, 6, 3)`.
        width: Channels of the stem, a multiple of `num_heads`. Stage s has `4 * width * 2**s` output channels.
        num_heads: Number of attention heads.

    Raises:
        ValueError: If a value is invalid.
    """

    kind = "axial_resnet"
    title = "AxialResNet"

    width: int = setting(check_size, 32)
    num_heads: int = setting(check_size, 8)

    def check_combinations(self):
        if self.width % self.num_heads:
            raise ValueError(
                f"width must be a multiple of num_heads. Received: width={self.width}, num_heads={self.num_heads}"
            )


def _check_expansion(name, value):
    if isinstance(value, bool) or value not in (1, 4):
        raise ValueError(f"{name} must be 4 (bottleneck units) or 1 (basic units). Received: {value!r}")
    return value


def _check_stages(name, value):
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{name} must be a tuple of one number for each stage. Received: {value!r}")
    return tuple(value)


@dataclasses.dataclass(frozen=True)
class ResNetConfig(_ResNetConfig):
    """A ResNet (arXiv 1512.03385) with batch norms, as in torchvision.

    Args:
        stage_depths: Number of units in each stage, such as `(3, 4, 6, 3)`.
        width: Channels of the stem. Stage s has `expansion * width * 2**s` output channels.
        expansion: 4: bottleneck units (1 x 1, 3 x 3 and 1 x 1 convolutions), with four times as many output channels as
            inner channels. 1: basic units (two 3 x 3 convolutions).
        strides_first: Which convolution has a stride of 2 in bottleneck units that halve the map. `True`: the first,
            as in the paper. `False`: the second, as in torchvision.
        drop_path_rate: Drop rate of the last unit (stochastic depth, arXiv 1603.09382), in [0, 1). The rate grows
            linearly from 0 in the first unit.
        dropout_rate: Dropout rate before the classifier, in [0, 1).
        mixing: The spatial operation of the units: `"convolution"` (3 x 3), `"attention_augmented"` (arXiv 1904.09925,
            from the second stage on), `"stand_alone"` (arXiv 1906.05909) or `"local_relation"` (arXiv 1904.11491).
        attention: Attention that scales the output of each unit's branch: `"squeeze_excitation"` (arXiv 1709.01507),
            `"cbam"` (arXiv 1807.06521), or `None`.
        global_unit: Kind of additional units, which relate all positions of a map: `"global_reasoning"` (GloRe, arXiv
            1811.12814), `"double_attention"` (A2-Nets, arXiv 1810.11579), or `None`.
        num_global_units: Number n of global units in each stage, if there is a `global_unit`. The first global unit
            follows the first unit of the stage. In a stage of d units, the others follow at intervals of d / n units.

    Raises:
        ValueError: If a value is invalid.
    """

    kind = "resnet"
    title = "ResNet"
    loads = ("resnet",)

    expansion: int = setting(_check_expansion, 4)
    strides_first: bool = setting(check_flag, False)
    drop_path_rate: float = setting(check_rate, 0.0)
    dropout_rate: float = setting(check_rate, 0.0)
    mixing: str = setting(("convolution", "attention_augmented", "stand_alone", "local_relation"), "convolution")
    attention: str | None = setting((None, "squeeze_excitation", "cbam"), None)
    global_unit: str | None = setting((None, "global_reasoning", "double_attention"), None)
    num_global_units: tuple[int, ...] = setting(_check_stages, ())

    def check_combinations(self):
        numbers = self.num_global_units
        if self.global_unit is None:
            if numbers:
                raise ValueError(f"num_global_units needs a global_unit. Received: num_global_units={numbers}")
            return
        fits = len(numbers) == len(self.stage_depths) and all(
            type(number) is int and 0 <= number <= depth
            for number, depth in zip(numbers, self.stage_depths, strict=True)
        )
        if not fits:
            raise ValueError(
                f"num_global_units must have one number for each stage, from 0 to the stage's depth. "
                f"Received: num_global_units={numbers}, stage_depths={self.stage_depths}"
            )


def _check_window_sizes(name, value):
    return tuple(check_size(name, size) for size in _check_stages(name, value))


@dataclasses.dataclass(frozen=True)
class SelfAttentionNetworkConfig(_ResNetConfig):
    """A SAN (arXiv 2004.13621): residual units with attention in windows. All convolutions are 1 x 1.

    Args:
        stage_depths: Number of units in each stage. Height and width are halved before each stage.
        width: Channels of the first stage, a multiple of 32. The second stage has four times as many channels, and each
            later stage twice as many as the previous stage.
        relation: `"pairwise"`: attention compares two positions at a time. `"patchwise"`: attention compares whole
            windows.
        window_sizes: Side of the windows in each stage, an odd number of pixels.

    Raises:
        ValueError: If a value is invalid.
    """

    kind = "self_attention_network"
    title = "SAN"

    relation: str = setting(("pairwise", "patchwise"), "patchwise")
    window_sizes: tuple[int, ...] = setting(_check_window_sizes, (3, 7, 7, 7, 7))

    def check_combinations(self):
        sizes = self.window_sizes
        if self.width % 32:
            raise ValueError(f"width must be a multiple of 32. Received: {self.width}")
        if len(sizes) != len(self.stage_depths) or not all(size % 2 for size in sizes):
            raise ValueError(
                f"window_sizes must have one odd number for each stage. Received: window_sizes={sizes}, "
                f"stage_depths={self.stage_depths}"
            )

    @property
    def total_stride(self):
        """Stride of the last map in pixels of the image, (height, width)."""
        return (2 ** len(self.stage_depths),) * 2
