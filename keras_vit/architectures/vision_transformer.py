"""`ViTConfig`, the architecture of a Vision Transformer, and the table of published variants.

Sources of the sizes:

* B, L, H: ViT (arXiv 2010.11929), Table 1. Hybrids: google-research/vision_transformer.
* Ti, S: AugReg (arXiv 2106.10270), Table 2. S/8: DINO (arXiv 2104.14294). S/14, B/14: DINOv2 (arXiv 2304.07193).
* g, G: Scaling ViT (arXiv 2106.04560), Table 2. So400m: SoViT (arXiv 2305.13035).
* M, g-opt: `decode_variant` of google-research/big_vision.
"""

import dataclasses

from keras_vit.architectures.base import Architecture
from keras_vit.architectures.spellings import spelled_variant
from keras_vit.checks import (
    check_choice,
    check_count,
    check_epsilon,
    check_patch_size,
    check_positive,
    check_positive_integer,
    check_rate,
    did_you_mean,
    is_number,
)
from keras_vit.resampling import METHODS

# {field: accepted values}
CHOICES = {
    "pooling": ("token", "avg", "map", None),
    "class_token": (None, True, False),
    "distillation_token": (False, True),
    "norm_placement": ("before_pooling", "after_pooling"),
    "position_embedding": ("learned_1d", "learned_2d", "relative", "sincos_2d", "none"),
    "position_placement": ("stem", "every_layer", "every_layer_shared"),
    "position_interpolation": METHODS,
    "qk_norm": (False, True),
    "pre_norm": (False, True),
    "crop_to_patches": (False, True),
    "mlp": ("gelu_tanh", "gelu_exact", "quick_gelu", "swiglu"),
    "axial": (False, True),
}
_PATCH_POOLINGS = ("avg", "map")  # These poolings need no class token.
_SIZES = ("hidden_dim", "num_layers", "num_heads", "mlp_dim")
_RATES = ("dropout_rate", "attention_dropout_rate", "drop_path_rate")


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


@dataclasses.dataclass(frozen=True)
class ViTConfig(Architecture):
    """The architecture of a Vision Transformer, without the image size and the number of classes.

    Args:
        patch_size: Side of a square patch in pixels, or a pair (height, width). With a stem, it is measured
            in pixels of the stem's feature map.
        hidden_dim: Width D of the tokens. A multiple of `num_heads`.
        num_layers: Number L of encoder blocks.
        num_heads: Number K of attention heads.
        mlp_dim: Width M of the hidden layer of each block's MLP.
        stem: `None`: the image is cut into patches. A `StemConfig`: the feature map of this stem is cut into patches
            (hybrid).
        pooling: Input of the head: `"token"`, the class token (ViT eq. 4); `"avg"`, the mean of the patch tokens
            (ViT, appendix D.3); `"map"`, a learned probe that attends to all tokens (Scaling ViT, arXiv 2106.04560,
            section 3.3); `None`, all tokens, for models without a head.
        class_token: Whether there is a class token. `None`: there is one unless `pooling` is `"avg"` or `"map"`.
        distillation_token: Whether there is a second class token with its own classifier. The logits of both
            classifiers are averaged (DeiT, arXiv 2012.12877, section 4).
        num_register_tokens: Number of learned tokens without a position, between the class tokens and the patch tokens
            (arXiv 2309.16588).
        norm_placement: `"before_pooling"`: the final LayerNorm comes before the pooling, as in Google's models.
            `"after_pooling"`: it comes after the pooling (`fc_norm` of timm and MAE).
        position_embedding: `"learned_1d"`, a learned vector for each token (ViT eq. 1); `"learned_2d"`, a learned
            vector for each row and each column of the grid (ViT, appendix D.4); `"relative"`, learned vectors for the
            offsets between tokens, used by the attention of every block (fixed image size only; ViT, appendix D.4);
            `"sincos_2d"`, fixed sines and cosines of both coordinates (arXiv 2205.01580); `"none"`.
        position_placement: `"stem"`: positions are added once, before the first block; `"every_layer"`: each block adds
            its own positions; `"every_layer_shared"`: each block adds the same positions (ViT, appendix D.4).
        position_interpolation: Method that resizes learned positions to another grid, one of
            `keras_vit.resampling.METHODS`.
        num_position_prefix_rows: Number of rows that the learned position table has for class and distillation tokens.
            `None`: one row for each of these tokens. 0: the table has rows for patches only.
        representation_dim: Width of the tanh layer `pre_logits` between pooling and classifier (ViT, section 3.1), or
            `None` for a head without this layer.
        head_bias: Initial value of the classifier's bias. The classifier's kernel starts at zero.
        layer_scale: Initial value of the learned factors that scale the channels of each residual branch (CaiT, arXiv
            2103.17239, section 2.1), or `None` for branches without factors.
        qk_norm: Whether queries and keys are normalised in each head (ViT-22B, arXiv 2302.05442, section 2).
        pre_norm: `True`: there is a LayerNorm before the first block, and the patch projection has no bias (CLIP).
        crop_to_patches: `True`: rows and columns of pixels that do not fill a patch are cut off at the bottom and the
            right. `False`: an image size that leaves incomplete patches raises an error.
        mlp: `"gelu_tanh"`, the tanh approximation of GELU, as Google's models use; `"gelu_exact"`, GELU computed with
            erf; `"quick_gelu"`, `x sigmoid(1.702 x)` (CLIP); `"swiglu"`, a gated MLP (DINOv2-g).
        layer_norm_epsilon: Number in [1e-15, 1] that is added to the variance in every LayerNorm.
        dropout_rate: Dropout rate after the position embedding, the attention and both MLP layers, in [0, 1).
        attention_dropout_rate: Dropout rate of the attention weights, in [0, 1).
        drop_path_rate: Drop rate of the last block (stochastic depth, arXiv 1603.09382), in [0, 1). The rate grows
            linearly from 0 in the first block.
        axial: `True`: each block attends along the rows of the grid, then along its columns. An MLP follows each of
            these attentions (ViT, appendix D.6). The model must have no class token and no registers.
        token_merging: Number of tokens that each block merges into similar tokens, for speed (r of ToMe, arXiv
            2210.09461). Merging does not change the shapes of the weights, so published weights can be used directly.
            With `pooling="avg"`, a token counts in proportion to its number of patches, as in the authors' code for
            MAE. With `pooling="map"`, which is not in the authors' code, all tokens count the same. Positions must be
            added once, before the first block. 0: no merging.

    Raises:
        ValueError: If a value is invalid. The message lists the accepted values.

    Example:

    >>> import keras_vit
    >>> config = keras_vit.ViTConfig(patch_size=4, hidden_dim=48, num_layers=2, num_heads=3, mlp_dim=96)
    >>> config.patch_shape, config.num_class_tokens
    ((4, 4), 1)
    """

    kind = "vit"
    title = "Vision Transformer"

    patch_size: int | tuple[int, int]
    hidden_dim: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    stem: StemConfig | None = None
    pooling: str | None = "token"
    class_token: bool | None = None
    distillation_token: bool = False
    num_register_tokens: int = 0
    norm_placement: str = "before_pooling"
    position_embedding: str = "learned_1d"
    position_placement: str = "stem"
    position_interpolation: str = "align_corners"
    num_position_prefix_rows: int | None = None
    representation_dim: int | None = None
    head_bias: float = 0.0
    layer_scale: float | None = None
    qk_norm: bool = False
    pre_norm: bool = False
    crop_to_patches: bool = False
    mlp: str = "gelu_tanh"
    layer_norm_epsilon: float = 1e-6
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    axial: bool = False
    token_merging: int = 0

    def __post_init__(self):
        for field, choices in CHOICES.items():
            check_choice(field, getattr(self, field), choices)
        sizes = {field: check_positive_integer(field, getattr(self, field)) for field in _SIZES}
        sizes["patch_size"] = check_patch_size(self.patch_size)
        if self.representation_dim is not None:
            sizes["representation_dim"] = check_positive_integer("representation_dim", self.representation_dim)
        for field in ("num_register_tokens", "token_merging"):
            sizes[field] = check_count(field, getattr(self, field))
        for field, size in sizes.items():
            object.__setattr__(self, field, size)  # Integers of other types, such as NumPy's, become `int`.
        for field in _RATES:
            check_rate(field, getattr(self, field))
        check_epsilon("layer_norm_epsilon", self.layer_norm_epsilon)
        if self.layer_scale is not None:
            check_positive("layer_scale", self.layer_scale)
        if not (self.stem is None or isinstance(self.stem, StemConfig)):
            raise ValueError(f"stem must be None or a keras_vit.StemConfig. Received: {self.stem!r}")
        if not is_number(self.head_bias):
            raise ValueError(f"head_bias must be a number. Received: {self.head_bias!r}")
        self._check_combinations()

    def _check_combinations(self):
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                f"hidden_dim must be a multiple of num_heads. Received: "
                f"hidden_dim={self.hidden_dim}, num_heads={self.num_heads}"
            )
        self._check_positions()
        if self.pooling == "token" and self.class_token is False:
            raise ValueError(
                "pooling='token' reads the class token, which class_token=False removes. Use pooling='avg'."
            )
        self._check_distillation()
        self._check_token_merging()
        if self.norm_placement == "after_pooling" and self.pooling is None:
            raise ValueError(
                "norm_placement='after_pooling' needs a pooling, such as pooling='avg'. Received: pooling=None"
            )
        rows = self.num_position_prefix_rows
        if rows is not None and rows not in range(self.num_class_tokens + 1):
            raise ValueError(
                f"num_position_prefix_rows must be None or from 0 to {self.num_class_tokens}, the number of class and "
                f"distillation tokens of this model. Received: {rows!r}"
            )

    def _check_distillation(self):
        if not self.distillation_token:
            return
        if self.num_class_tokens != 2 or self.pooling not in ("token", None):
            raise ValueError(
                f"distillation_token=True needs a class token, and pooling='token' or None. Received: "
                f"pooling={self.pooling!r}, class_token={self.class_token!r}"
            )
        if self.representation_dim or self.norm_placement == "after_pooling":
            raise ValueError(
                f"distillation_token=True needs representation_dim=None and norm_placement='before_pooling'. Received: "
                f"representation_dim={self.representation_dim!r}, norm_placement={self.norm_placement!r}"
            )

    def _check_token_merging(self):
        required = {"axial": False, "position_placement": "stem"}
        wrong = [field for field, value in required.items() if getattr(self, field) != value]
        wrong += ["position_embedding"] if self.position_embedding == "relative" else []
        if self.token_merging and wrong:
            raise ValueError(
                f"token_merging={self.token_merging} leaves no grid of patches after the first block, so it needs "
                f"axial=False, position_placement='stem' and a position_embedding other than 'relative'. Received: "
                f"{', '.join(f'{field}={getattr(self, field)!r}' for field in wrong)}"
            )

    def _check_positions(self):
        kind, placement, width = self.position_embedding, self.position_placement, self.hidden_dim
        if kind == "sincos_2d" and (width % 4 or width < 8):
            raise ValueError(
                f"position_embedding='sincos_2d' needs a hidden_dim that is a multiple of 4 and at least 8 (a sine and "
                f"a cosine of each coordinate). Received: hidden_dim={width}"
            )
        if kind == "learned_2d" and width % 2:
            raise ValueError(
                f"position_embedding='learned_2d' needs an even hidden_dim, because half of it is used for each "
                f"coordinate. Received: hidden_dim={width}"
            )
        if kind in ("none", "relative") and placement != "stem":
            reason = "there are no positions to add" if kind == "none" else "it acts in the attention of every block"
            raise ValueError(
                f"position_embedding={kind!r} needs position_placement='stem': {reason}. Received: "
                f"position_placement={placement!r}"
            )
        if self.axial and self.num_prefix_tokens:
            raise ValueError(
                f"axial=True needs a model without class token and registers, such as pooling='avg', class_token=None "
                f"and num_register_tokens=0. Received: pooling={self.pooling!r}, class_token="
                f"{self.class_token!r}, num_register_tokens={self.num_register_tokens}"
            )
        if self.axial and kind == "relative":
            raise ValueError(
                "axial=True cannot be combined with position_embedding='relative'. Use 'learned_1d' or 'learned_2d'."
            )

    @property
    def patch_shape(self):
        """(height, width) of a patch in pixels."""
        return self.patch_size if isinstance(self.patch_size, tuple) else (self.patch_size, self.patch_size)

    @property
    def total_stride(self):
        """Stride of the tokens in pixels of the image, (height, width)."""
        stride = 1 if self.stem is None else self.stem.stride
        return tuple(side * stride for side in self.patch_shape)

    @property
    def has_class_token(self):
        """Whether there is a class token. If `class_token` is `None`, this depends on `pooling`."""
        return self.pooling not in _PATCH_POOLINGS if self.class_token is None else self.class_token

    @property
    def num_class_tokens(self):
        """Number of class and distillation tokens."""
        return int(self.has_class_token) + int(self.has_class_token and self.distillation_token)

    @property
    def num_prefix_tokens(self):
        """Number of tokens before the patch tokens: class, distillation, registers."""
        return self.num_class_tokens + self.num_register_tokens

    @property
    def position_prefix_rows(self):
        """`num_position_prefix_rows` or, if that is `None`, one row for each class and distillation token."""
        return self.num_class_tokens if self.num_position_prefix_rows is None else self.num_position_prefix_rows


# name: (hidden_dim, num_layers, num_heads, mlp_dim, published patch sizes)
_SIZES_BY_NAME = {
    "Ti": (192, 12, 3, 768, (16,)),
    "S": (384, 12, 6, 1536, (8, 14, 16, 32)),
    "M": (512, 12, 8, 2048, (16,)),
    "B": (768, 12, 12, 3072, (8, 14, 16, 32)),
    "L": (1024, 24, 16, 4096, (14, 16, 32)),
    "So400m": (1152, 27, 16, 4304, (14, 16)),
    "H": (1280, 32, 16, 5120, (14, 16)),
    "g": (1408, 40, 16, 6144, (14,)),
    "g-opt": (1536, 40, 16, 6144, (16,)),
    "G": (1664, 48, 16, 8192, (14,)),
}

# name: (stage depths of the stem, plain variant with the same encoder, patch size on the stem's map)
_HYBRIDS_BY_NAME = {
    "R+Ti/16": ((), "Ti/16", 8),
    "R26+S/32": ((2, 2, 2, 2), "S/32", 1),
    "R26+B/32": ((2, 2, 2, 2), "B/32", 1),
    "R50+B/16": ((3, 4, 9), "B/16", 1),
    "R50+B/32": ((3, 4, 6, 3), "B/32", 1),
    "R50+L/16": ((3, 4, 9), "L/16", 1),
    "R50+L/32": ((3, 4, 6, 3), "L/32", 1),
}

_PLAIN = {
    f"{name}/{patch_size}": ViTConfig(patch_size, hidden_dim, num_layers, num_heads, mlp_dim)
    for name, (hidden_dim, num_layers, num_heads, mlp_dim, patch_sizes) in _SIZES_BY_NAME.items()
    for patch_size in patch_sizes
}
VARIANTS = _PLAIN | {
    name: _PLAIN[encoder].replace(stem=StemConfig(stage_depths), patch_size=patch_size)
    for name, (stage_depths, encoder, patch_size) in _HYBRIDS_BY_NAME.items()
}
"""The published variants by name: `"<size>/<patch size>"`, or for hybrids `"<stem>+<size>/<stride>"`.

R+Ti/16 is an exception. The authors use this name, but the stride is 32: the stem has a stride of 4, and the patches
have a side of 8.
"""


def get_variant(name):
    """Returns the `ViTConfig` of a published variant. Raises a ValueError for an unknown name."""
    if name not in VARIANTS:
        meant = spelled_variant(str(name), VARIANTS)
        hint = f" Did you mean {meant!r}?" if meant else did_you_mean(name, VARIANTS)
        raise ValueError(
            f"{name!r} is not a published variant.{hint} Available: {', '.join(VARIANTS)}. A keras_vit.ViTConfig is "
            f"also accepted."
        )
    return VARIANTS[name]
