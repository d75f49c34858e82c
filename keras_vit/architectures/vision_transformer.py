"""`ViTConfig`, the architecture of a Vision Transformer, and the table of published variants.

Sources of the sizes:

* B, L, H: ViT (arXiv 2010.11929), Table 1. Hybrids: google-research/vision_transformer.
* Ti, S: AugReg (arXiv 2106.10270), Table 2. S/8: DINO (arXiv 2104.14294). S/14, B/14: DINOv2 (arXiv 2304.07193).
* g, G: Scaling ViT (arXiv 2106.04560), Table 2. So400m: SoViT (arXiv 2305.13035).
* M, g-opt: `decode_variant` of google-research/big_vision.
"""

import dataclasses
import functools
import typing

from keras_vit.architectures.base import ANY, Architecture, check_later, optional, setting
from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.architectures.spellings import spelled_variant
from keras_vit.architectures.stem import ConvStemConfig, StemConfig
from keras_vit.architectures.vit_checks import check_combinations
from keras_vit.checks import (
    MAX_SIZE,
    check_count,
    check_epsilon,
    check_number,
    check_patch_size,
    check_positive,
    check_rate,
    check_size,
    did_you_mean,
    shown,
)
from keras_vit.resampling import METHODS

_FLAG = (False, True)
_check_count = functools.partial(check_count, largest=MAX_SIZE)
_PATCH_POOLINGS = ("avg", "map")  # These poolings need no class token.


@dataclasses.dataclass(frozen=True)
class ViTConfig(Architecture):
    """The architecture of a Vision Transformer, without the image size and the number of classes.

    This class is the table of the fields: the docstring gives their meaning, and the class body their types, accepted
    values, defaults, and the formats of weight files that can express them. "timm" and "eva" are timm's classes
    `VisionTransformer` and `Eva`, and "huggingface" means all models of transformers, unless one of them (`vit`,
    `deit`, `ijepa`, `dinov2`, `dinov2_with_registers`, `dinov3`, `siglip`, `clip`) has other values.

    Args:
        patch_size: Side of a square patch in pixels, or a pair (height, width). With a stem, it is measured
            in pixels of the stem's feature map.
        hidden_dim: Width D of the tokens. A multiple of `num_heads`.
        num_layers: Number L of encoder blocks.
        num_heads: Number K of attention heads.
        mlp_dim: Width M of the hidden layer of each block's MLP.
        stem: `None`: the image is cut into patches. A `StemConfig` (a ResNet) or `ConvStemConfig` (a few convolutions):
            the feature map of this stem is cut into patches (hybrid).
        pooling: Input of the head: `"token"`, the class token (ViT eq. 4); `"avg"`, the mean of the patch tokens
            (ViT, appendix D.3); `"map"`, a learned probe that attends to the patch tokens (Scaling ViT, arXiv
            2106.04560, section 3.3); `None`, all tokens, for models without a head.
        class_token: Whether there is a class token. `None`: there is one unless `pooling` is `"avg"` or `"map"`.
        distillation_token: Whether there is a second class token with its own classifier. The logits of both
            classifiers are averaged (DeiT, arXiv 2012.12877, section 4).
        num_register_tokens: Number of learned tokens between the class tokens and the patch tokens (arXiv 2309.16588).
        pooling_num_heads: Number of heads of the probe's attention with `pooling="map"`. `None`: `num_heads`.
        pooling_mlp_dim: Width of the hidden layer of the probe's MLP with `pooling="map"`. `None`: `mlp_dim`.
        pool_prefix_tokens: Whether `pooling="avg"` and `"map"` also pool class token, distillation token and registers
            (Perception Encoder, arXiv 2504.13181).
        block_norm: `"pre"`: each block normalises the inputs of its attention and MLP (ViT eqs. 2 and 3). `"post"`: it
            normalises their outputs, before they are added to the residual connection (EVA-02-CLIP-E).
        final_norm: Whether there is a LayerNorm after the last block. `norm_placement` defines whether it comes before
            or after the pooling.
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
        num_position_prefix_rows: Number of rows that the learned position table has for the first prefix tokens.
            `None`: one row for the class token and one for the distillation token, if the model has them. 0: the table
            has rows for patches only. If the number is larger than with `None`, registers have rows, too.
        rotary: `keras_vit.RotaryConfig`: the attention of each block rotates queries and keys by angles that depend on
            the position. Models without other positions have `position_embedding="none"`. `None`: no rotation.
        representation_dim: Width of the tanh layer `pre_logits` between pooling and classifier (ViT, section 3.1), or
            `None` for a head without this layer.
        projection_dim: Width of the linear layer `projection` between pooling and classifier, or `None` for a head
            without this layer. Image-text models project images to the width of texts (CLIP, arXiv 2103.00020).
        unit_representation: Whether the vector that the classifier reads is divided by its length. The logits are then
            proportional to cosines, as in image-text models.
        head_bias: Initial value of the classifier's bias. The classifier's kernel starts at zero.
        layer_scale: Initial value of the learned factors that scale the channels of each residual branch (CaiT, arXiv
            2103.17239, section 2.1), or `None` for branches without factors.
        qk_norm: Whether queries and keys are normalised in each head (ViT-22B, arXiv 2302.05442, section 2).
        qkv_bias: Biases of the projections to queries, keys and values: `"all"`, `"no_key"` (queries and values only)
            or `"none"`.
        attention_inner_norm: Whether each attention has a LayerNorm over the concatenated heads before their projection
            (sub-LN, arXiv 2210.06423; EVA-02-CLIP).
        mlp_inner_norm: Whether each MLP has a LayerNorm before its second layer (sub-LN; EVA-02).
        pre_norm: `True`: there is a LayerNorm before the first block, and the patch projection has no bias (CLIP).
        crop_to_patches: `True`: rows and columns of pixels that do not fill a patch are cut off at the bottom and the
            right. `False`: an image size that leaves incomplete patches raises an error.
        mlp: `"gelu_tanh"`, the tanh approximation of GELU, as Google's models use; `"gelu_exact"`, GELU computed with
            erf; `"quick_gelu"`, `x sigmoid(1.702 x)` (CLIP); `"swiglu"`, a gated MLP (DINOv2-g);
            `"relu"`.
        layer_norm_epsilon: Number in [1e-15, 1] that is added to the variance in every LayerNorm.
        dropout_rate: Dropout rate after the position embedding, the attention and both MLP layers, in [0, 1).
        attention_dropout_rate: Dropout rate of the attention weights, in [0, 1).
        drop_path_rate: Drop rate of the last block (stochastic depth, arXiv 1603.09382), in [0, 1). The rate grows
            linearly from 0 in the first block.
        patch_dropout_rate: Share of the patches that are removed from each image in training, before the first block
            (arXiv 2208.07220), in [0, 1). Training takes less time and memory. Positions must be added once, before the
            first block, and the model must have a pooling.
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
    loads: typing.ClassVar[tuple[str, ...]] = ("vit",)

    patch_size: int | tuple[int, int] = setting(check_patch_size)
    hidden_dim: int = setting(check_size)
    num_layers: int = setting(check_size)
    num_heads: int = setting(check_size)
    mlp_dim: int = setting(check_size)
    stem: StemConfig | ConvStemConfig | None = setting(
        (StemConfig, ConvStemConfig), None, google=(None, StemConfig), timm=(None, StemConfig), eva=(None,)
    )
    pooling: str | None = setting(
        ("token", "avg", "map", None),
        "token",
        **dict.fromkeys(("google", "timm"), ("token", "avg", "map", None)),
        keras_hub=("token", "avg", None),
        huggingface=("token", None),
        ijepa=("avg", None),
        siglip=("map",),
    )
    class_token: bool | None = setting(
        (None, *_FLAG), None, **dict.fromkeys(("google", "timm", "keras_hub", "huggingface"), (None, *_FLAG))
    )
    distillation_token: bool = setting(_FLAG, False, timm=_FLAG, eva=(False,), deit=(True,))
    num_register_tokens: int = setting(_check_count, 0, timm=ANY, dinov2_with_registers=ANY, dinov3=ANY)
    pooling_num_heads: int | None = setting(optional(check_size), None, eva=ANY)
    pooling_mlp_dim: int | None = setting(optional(check_size), None, eva=ANY)
    pool_prefix_tokens: bool = setting(_FLAG, False, timm=_FLAG)
    block_norm: str = setting(("pre", "post"), "pre", timm=("pre", "post"))
    final_norm: bool = setting((True, False), True, timm=_FLAG)
    norm_placement: str = setting(
        ("before_pooling", "after_pooling"), "before_pooling", timm=("before_pooling", "after_pooling")
    )
    position_embedding: str = setting(
        ("learned_1d", "learned_2d", "relative", "sincos_2d", "none"),
        "learned_1d",
        google=("learned_1d", "sincos_2d"),
        timm=("learned_1d", "none"),
        dinov3=("none",),
    )
    position_placement: str = setting(
        ("stem", "every_layer", "every_layer_shared"), "stem", yolos=("stem", "every_layer")
    )
    position_interpolation: str = setting(METHODS, "align_corners", in_files=False)
    num_position_prefix_rows: int | None = setting(
        check_later, None, google=ANY, timm=ANY, keras_hub=ANY, huggingface=ANY
    )
    rotary: RotaryConfig | None = setting((RotaryConfig,), None, eva=ANY, dinov3=ANY)
    representation_dim: int | None = setting(optional(check_size), None, google=ANY, keras_hub=ANY, vit=ANY)
    projection_dim: int | None = setting(optional(check_size), None)
    unit_representation: bool = setting(_FLAG, False)
    head_bias: float = setting(check_number, 0.0, in_files=False)
    layer_scale: float | None = setting(optional(check_positive), None, timm=ANY, dinov2=ANY, dinov3=ANY)
    qk_norm: bool = setting(_FLAG, False, timm=_FLAG)
    qkv_bias: str = setting(
        ("all", "no_key", "none"),
        "all",
        **dict.fromkeys(("timm", "huggingface"), ("all", "none")),
        **dict.fromkeys(("eva", "dinov3"), ("all", "no_key", "none")),
        **dict.fromkeys(("siglip", "clip"), ("all",)),
    )
    attention_inner_norm: bool = setting(_FLAG, False, timm=_FLAG)
    mlp_inner_norm: bool = setting(_FLAG, False, timm=_FLAG)
    pre_norm: bool = setting(_FLAG, False, timm=_FLAG, clip=(True,))
    crop_to_patches: bool = setting(_FLAG, False, google=_FLAG, timm=_FLAG, huggingface=_FLAG)
    mlp: str = setting(
        ("gelu_tanh", "gelu_exact", "quick_gelu", "swiglu", "relu"),
        "gelu_tanh",
        **dict.fromkeys(("timm", "dinov2", "dinov3"), ("gelu_tanh", "gelu_exact", "quick_gelu", "swiglu")),
        eva=("gelu_exact", "swiglu"),
        keras_hub=("gelu_exact",),
        huggingface=("gelu_tanh", "gelu_exact", "quick_gelu"),
    )
    layer_norm_epsilon: float = setting(check_epsilon, 1e-6, timm=(1e-6, 1e-5), keras_hub=ANY, huggingface=ANY)
    dropout_rate: float = setting(check_rate, 0.0, in_files=False)
    attention_dropout_rate: float = setting(check_rate, 0.0, in_files=False)
    drop_path_rate: float = setting(check_rate, 0.0, in_files=False)
    patch_dropout_rate: float = setting(check_rate, 0.0, in_files=False)
    axial: bool = setting(_FLAG, False)
    token_merging: int = setting(_check_count, 0, only_loading=ANY)  # Token merging has no weights.

    def check_combinations(self):
        check_combinations(self)

    def with_new_head(self):
        # For a new task the whole head is replaced (ViT, arXiv 2010.11929, section 3.2).
        return self.replace(representation_dim=None, projection_dim=None, unit_representation=False)

    def replace(self, **changes):
        """Returns a copy with some fields changed. Raises a TypeError for an unknown name.

        If `pooling` changes, `pooling_num_heads`, `pooling_mlp_dim` and `pool_prefix_tokens` are reset to their
        defaults, unless `changes` contains them. With `pooling=None`, a LayerNorm after the pooling is left out, and
        patches are not dropped.
        """
        pooling = changes.get("pooling", self.pooling)
        if pooling != self.pooling:
            changes = {"pooling_num_heads": None, "pooling_mlp_dim": None, "pool_prefix_tokens": False, **changes}
        if pooling is None:
            changes = {"patch_dropout_rate": 0.0, **changes}
            if self.norm_placement == "after_pooling":
                changes = {"norm_placement": "before_pooling", "final_norm": False, **changes}
        return super().replace(**changes)

    @property
    def key_dim(self):
        """Width Dh of a head."""
        return self.hidden_dim // self.num_heads

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
    def num_detection_tokens(self):
        """Number of tokens that predict an object each (YOLOS, arXiv 2106.00666)."""
        return 0

    @property
    def num_prefix_tokens(self):
        """Number of tokens before the patch tokens: class, distillation, registers, detection tokens."""
        return self.num_class_tokens + self.num_register_tokens + self.num_detection_tokens

    @property
    def has_encoder_norm(self):
        """Whether there is a LayerNorm after the last block, before the pooling."""
        return self.final_norm and self.norm_placement == "before_pooling"

    @property
    def num_tokens_not_pooled(self):
        """Number of tokens at the beginning of the sequence that `pooling="avg"` and `"map"` leave out."""
        return 0 if self.pool_prefix_tokens else self.num_prefix_tokens

    @property
    def position_prefix_rows(self):
        """`num_position_prefix_rows` or, if that is `None`, one row for each class and distillation token."""
        return self.num_class_tokens if self.num_position_prefix_rows is None else self.num_position_prefix_rows


class ViTConfigArgumentsWithoutNumHeads(typing.TypedDict, total=False):
    """The fields of `ViTConfig` as keyword arguments, for editors and type checkers.

    `num_heads` is missing, because it is a separate argument of `from_pretrained`.
    """

    patch_size: int | tuple[int, int]
    hidden_dim: int
    num_layers: int
    mlp_dim: int
    stem: StemConfig | ConvStemConfig | None
    pooling: str | None
    class_token: bool | None
    distillation_token: bool
    num_register_tokens: int
    pooling_num_heads: int | None
    pooling_mlp_dim: int | None
    pool_prefix_tokens: bool
    block_norm: str
    final_norm: bool
    norm_placement: str
    position_embedding: str
    position_placement: str
    position_interpolation: str
    num_position_prefix_rows: int | None
    rotary: RotaryConfig | None
    representation_dim: int | None
    projection_dim: int | None
    unit_representation: bool
    head_bias: float
    layer_scale: float | None
    qk_norm: bool
    qkv_bias: str
    attention_inner_norm: bool
    mlp_inner_norm: bool
    pre_norm: bool
    crop_to_patches: bool
    mlp: str
    layer_norm_epsilon: float
    dropout_rate: float
    attention_dropout_rate: float
    drop_path_rate: float
    patch_dropout_rate: float
    axial: bool
    token_merging: int


class ViTConfigArguments(ViTConfigArgumentsWithoutNumHeads, total=False):
    """The fields of `ViTConfig`."""

    num_heads: int


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
            f"{shown(name)} is not a published variant.{hint} Available: {', '.join(VARIANTS)}. A "
            f"keras_vit.ViTConfig is also accepted."
        )
    return VARIANTS[name]
