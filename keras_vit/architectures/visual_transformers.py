"""The configs of Visual Transformers (arXiv 2006.03677) and of segmentation models."""

import dataclasses

from keras_vit.architectures.base import check_later, setting
from keras_vit.architectures.resnets import ResNetConfig
from keras_vit.checks import check_flag, check_size


@dataclasses.dataclass(frozen=True)
class VTResNetConfig(ResNetConfig):
    """A VT-ResNet (Visual Transformers, arXiv 2006.03677): a ResNet whose last stage is replaced by token modules.

    The fields of `ResNetConfig` describe the backbone, which has all stages of the ResNet except the last one.

    Args:
        num_modules: Number of modules in place of the last stage.
        filters: Channels of the maps in the modules.
        num_tokens: Number L of tokens.
        token_dim: Channels of a token.
        num_heads: Number of attention heads.
        group_width: Channels in each group of the grouped projections.
        tokenizer: Kind of the tokenizers: `"filter"`, or for ablations `"pooling"` or `"clustering"`.
        is_recurrent: Whether the tokenizers of the second and later modules compute their filters from the tokens of
            the previous module.
        split_tokens: Whether recurrent tokenizers keep half of the previous tokens.
        relation: Layer that relates the tokens: `"transformer"`, or for ablations `"graph_convolution"` or `"none"`.
        relation_modules: Indices of the modules with a relation layer. `None`: all modules.
        has_projector: Whether every module except the last projects its tokens onto the map. The next module then
            gathers new tokens from the map. `False`: only the first module gathers tokens. Each later module applies
            its relation layer to the tokens of the previous module.

    Raises:
        ValueError: If a value is invalid.
    """

    kind = "vt_resnet"
    title = "VT-ResNet"

    num_modules: int = setting(check_size, 3)
    filters: int = setting(check_size, 1024)
    num_tokens: int = setting(check_size, 16)
    token_dim: int = setting(check_size, 1024)
    num_heads: int = setting(check_size, 16)
    group_width: int = setting(check_size, 64)
    tokenizer: str = setting(("filter", "pooling", "clustering"), "filter")
    is_recurrent: bool = setting(check_flag, True)
    split_tokens: bool = setting(check_flag, True)
    relation: str = setting(("transformer", "graph_convolution", "none"), "transformer")
    relation_modules: tuple[int, ...] | None = setting(check_later, None)
    has_projector: bool = setting(check_flag, True)

    def check_combinations(self):
        super().check_combinations()
        if self.relation_modules is None:
            return
        if not isinstance(self.relation_modules, (tuple, list, range)) or not all(
            type(module) is int and 0 <= module < self.num_modules for module in self.relation_modules
        ):
            raise ValueError(
                f"relation_modules must be None or numbers of modules from 0 to {self.num_modules - 1}. Received: "
                f"{self.relation_modules!r}"
            )
        object.__setattr__(self, "relation_modules", tuple(sorted(set(self.relation_modules))))

    @property
    def related_modules(self):
        """Indices of the modules with a relation layer."""
        return tuple(range(self.num_modules)) if self.relation_modules is None else self.relation_modules


@dataclasses.dataclass(frozen=True)
class PanopticFPNConfig(ResNetConfig):
    """The semantic branch of a Panoptic FPN (arXiv 1901.02446): a ResNet, a feature pyramid and a segmentation head.

    The fields of `ResNetConfig` describe the backbone. `strides_first` is `True` by default, as in Detectron2.

    Args:
        neck_dim: Channels of the maps between the backbone and the head.
        head_dim: Channels inside the head.

    Raises:
        ValueError: If a value is invalid.
    """

    kind = "panoptic_fpn"
    title = "Panoptic FPN"
    output = "class_map"

    strides_first: bool = setting(check_flag, True)
    neck_dim: int = setting(check_size, 256)
    head_dim: int = setting(check_size, 128)


@dataclasses.dataclass(frozen=True)
class VTFPNConfig(PanopticFPNConfig):
    """A VT-FPN (Visual Transformers, arXiv 2006.03677, section 5.3). Tokens connect maps of different sizes.

    It has all fields of `PanopticFPNConfig` and the following fields.

    Args:
        num_tokens: Number of tokens for each map.
        token_dim: Channels of a token.
        num_heads: Number of attention heads.
        group_width: Number of channels per group in the layer that computes the projectors' queries.

    Raises:
        ValueError: If a value is invalid.
    """

    kind = "vt_fpn"
    title = "VT-FPN"

    num_tokens: int = setting(check_size, 8)
    token_dim: int = setting(check_size, 1024)
    num_heads: int = setting(check_size, 16)
    group_width: int = setting(check_size, 16)
