"""What Visual Transformers (arXiv 2006.03677) are made of, and the segmentation models that they are compared with."""

import dataclasses

from keras_vit.architectures.resnets import ResNetConfig
from keras_vit.checks import check_choice, check_flag, check_positive_integer

TOKENIZERS = ("filter", "pooling", "clustering")
RELATIONS = ("transformer", "graph_convolution", "none")


@dataclasses.dataclass(frozen=True)
class VTResNetConfig(ResNetConfig):
    """A VT-ResNet (Visual Transformers, arXiv 2006.03677): a ResNet whose last stage is modules of visual tokens.

    The fields of `ResNetConfig` are of the trunk: of the ResNet, all stages but the last.

    Args:
        num_modules: Number of modules in place of the last stage.
        filters: Channels of the maps in them.
        num_tokens: Number L of tokens.
        token_dim: Channels of a token.
        num_heads: Heads of every attention.
        group_width: Channels of a group of the projections that are in groups.
        tokenizer: `"filter"`, or, in ablations, `"pooling"` or `"clustering"`.
        is_recurrent: Whether from the second module on tokens are gathered by filters made of those before.
        split_tokens: Whether then half of the tokens is carried over.
        relation: How tokens relate to each other: `"transformer"`, or, in ablations, `"graph_convolution"` or `"none"`.
        relation_modules: Numbers of the modules, from 0, in which they do; `None`: in all.
        has_projector: Whether tokens are projected onto the map between modules; if not, modules after the first relate
            the same tokens again.

    Raises:
        ValueError: If a value is impossible.
    """

    kind = "vt_resnet"
    title = "VT-ResNet"

    num_modules: int = 3
    filters: int = 1024
    num_tokens: int = 16
    token_dim: int = 1024
    num_heads: int = 16
    group_width: int = 64
    tokenizer: str = "filter"
    is_recurrent: bool = True
    split_tokens: bool = True
    relation: str = "transformer"
    relation_modules: tuple[int, ...] | None = None
    has_projector: bool = True

    def __post_init__(self):
        super().__post_init__()
        for name in ("num_modules", "filters", "num_tokens", "token_dim", "num_heads", "group_width"):
            object.__setattr__(self, name, check_positive_integer(name, getattr(self, name)))
        for name in ("is_recurrent", "split_tokens", "has_projector"):
            check_flag(name, getattr(self, name))
        for name, accepted in (("tokenizer", TOKENIZERS), ("relation", RELATIONS)):
            check_choice(name, getattr(self, name), accepted)
        modules = range(self.num_modules) if self.relation_modules is None else self.relation_modules
        if not isinstance(modules, (tuple, list, range)) or not all(
            type(module) is int and 0 <= module < self.num_modules for module in modules
        ):
            raise ValueError(
                f"relation_modules must be None or numbers of modules from 0 to {self.num_modules - 1}. Received: "
                f"{self.relation_modules!r}"
            )
        if self.relation_modules is not None:
            object.__setattr__(self, "relation_modules", tuple(sorted(set(modules))))

    @property
    def related_modules(self):
        """Numbers of the modules in which tokens relate to each other."""
        return tuple(range(self.num_modules)) if self.relation_modules is None else self.relation_modules


@dataclasses.dataclass(frozen=True)
class PanopticFPNConfig(ResNetConfig):
    """A Panoptic FPN's semantic branch (arXiv 1901.02446): a ResNet, a feature pyramid, a head for each pixel's class.

    The fields of `ResNetConfig` are of the backbone; by default it has its strides where Detectron2 has them.

    Args:
        neck_dim: Channels of the maps between backbone and head.
        head_dim: Channels inside the head.

    Raises:
        ValueError: If a value is impossible.
    """

    kind = "panoptic_fpn"
    title = "Panoptic FPN"

    strides_first: bool = True
    neck_dim: int = 256
    head_dim: int = 128

    def __post_init__(self):
        super().__post_init__()
        self._check_sizes("neck_dim", "head_dim")

    def _check_sizes(self, *names):
        for name in names:
            object.__setattr__(self, name, check_positive_integer(name, getattr(self, name)))


@dataclasses.dataclass(frozen=True)
class VTFPNConfig(PanopticFPNConfig):
    """A VT-FPN (Visual Transformers, arXiv 2006.03677, section 5.3): tokens pass on what a pyramid's convolutions do.

    The fields of `PanopticFPNConfig` mean the same.

    Args:
        num_tokens: Number of tokens of each map.
        token_dim: Channels of a token.
        num_heads: Heads of every attention.
        group_width: Channels of a group of the projectors' queries.

    Raises:
        ValueError: If a value is impossible.
    """

    kind = "vt_fpn"
    title = "VT-FPN"

    num_tokens: int = 8
    token_dim: int = 1024
    num_heads: int = 16
    group_width: int = 16

    def __post_init__(self):
        super().__post_init__()
        self._check_sizes("num_tokens", "token_dim", "num_heads", "group_width")
