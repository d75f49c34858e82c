"""The configs of ResNets."""

import dataclasses

from keras_vit.architectures.base import Architecture
from keras_vit.checks import check_choice, check_flag, check_rate, check_size


@dataclasses.dataclass(frozen=True)
class _ResNetConfig(Architecture):
    stage_depths: tuple[int, ...]
    width: int = 64

    def __post_init__(self):
        if not isinstance(self.stage_depths, (tuple, list)) or not self.stage_depths:
            raise ValueError(f"stage_depths must be a tuple of at least one integer. Received: {self.stage_depths!r}")
        depths = tuple(check_size("Each number in stage_depths", depth) for depth in self.stage_depths)
        object.__setattr__(self, "stage_depths", depths)
        object.__setattr__(self, "width", check_size("width", self.width))

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
        root_padding: Padding of the stem's max-pooling, `"zeros"` or `"ignored"`, as in `keras_vit.BiTResNet`.

    Raises:
        ValueError: If a value is invalid.
    """

    kind = "bit_resnet"
    title = "BiT-ResNet"

    root_padding: str = "zeros"

    def __post_init__(self):
        super().__post_init__()
        if self.root_padding not in ("zeros", "ignored"):
            raise ValueError(f"root_padding must be 'zeros' or 'ignored'. Received: {self.root_padding!r}")
        if self.width % 32:
            raise ValueError(f"width must be a multiple of 32, the number of groups. Received: {self.width}")


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

    width: int = 32
    num_heads: int = 8

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "num_heads", check_size("num_heads", self.num_heads))
        if self.width % self.num_heads:
            raise ValueError(
                f"width must be a multiple of num_heads. Received: width={self.width}, num_heads={self.num_heads}"
            )


MIXINGS = ("convolution", "attention_augmented", "stand_alone", "local_relation")
ATTENTIONS = (None, "squeeze_excitation", "cbam")
GLOBAL_UNITS = (None, "global_reasoning", "double_attention")


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

    expansion: int = 4
    strides_first: bool = False
    drop_path_rate: float = 0.0
    dropout_rate: float = 0.0
    mixing: str = "convolution"
    attention: str | None = None
    global_unit: str | None = None
    num_global_units: tuple[int, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.expansion, bool) or self.expansion not in (1, 4):
            raise ValueError(f"expansion must be 4 (bottleneck units) or 1 (basic units). Received: {self.expansion!r}")
        check_flag("strides_first", self.strides_first)
        check_rate("drop_path_rate", self.drop_path_rate)
        check_rate("dropout_rate", self.dropout_rate)
        for name, accepted in (("mixing", MIXINGS), ("attention", ATTENTIONS), ("global_unit", GLOBAL_UNITS)):
            check_choice(name, getattr(self, name), accepted)
        if not isinstance(self.num_global_units, (tuple, list)):
            raise ValueError(
                f"num_global_units must be a tuple of one number for each stage. Received: {self.num_global_units!r}"
            )
        object.__setattr__(self, "num_global_units", tuple(self.num_global_units))
        self._check_global_units()

    def _check_global_units(self):
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

    relation: str = "patchwise"
    window_sizes: tuple[int, ...] = (3, 7, 7, 7, 7)

    def __post_init__(self):
        super().__post_init__()
        check_choice("relation", self.relation, ("pairwise", "patchwise"))
        if self.width % 32:
            raise ValueError(f"width must be a multiple of 32. Received: {self.width}")
        if not isinstance(self.window_sizes, (tuple, list)):
            raise ValueError(
                f"window_sizes must be a tuple of one number for each stage. Received: {self.window_sizes!r}"
            )
        sizes = tuple(check_size("window_sizes", size) for size in self.window_sizes)
        if len(sizes) != len(self.stage_depths) or not all(size % 2 for size in sizes):
            raise ValueError(
                f"window_sizes must have one odd number for each stage. Received: window_sizes={sizes}, "
                f"stage_depths={self.stage_depths}"
            )
        object.__setattr__(self, "window_sizes", sizes)

    @property
    def total_stride(self):
        """Stride of the last map in pixels of the image, (height, width)."""
        return (2 ** len(self.stage_depths),) * 2
