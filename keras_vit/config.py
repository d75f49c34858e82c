"""What a Vision Transformer is made of: `ViTConfig`, and the table of the published variants.

Pure data: no Keras, no URLs. Sizes of the variants: ViT (arXiv 2010.11929) Table 1 for B, L and H; AugReg
(arXiv 2106.10270) Table 2 for Ti and S; Scaling ViT (arXiv 2106.04560) Table 2 for g and G; SoViT
(arXiv 2305.13035) for So400m; `decode_variant` of google-research/big_vision for M and g-opt.
"""

import dataclasses
import difflib
import math
import numbers

# What each choice may be. A value that the papers or the published weights know, and that has no part here yet, is
# refused with this list.
CHOICES = {
    "stem": (None,),
    "pooling": ("token", "avg", None),
    "class_token": (None, True, False),
    "distillation_token": (False,),
    "num_register_tokens": (0,),
    "norm_placement": ("before_pooling",),
    "position_embedding": ("learned_1d", "sincos_2d", "none"),
    "position_placement": ("stem",),
    "layer_scale": (None,),
    "qk_norm": (False,),
    "pre_norm": (False,),
    "crop_to_patches": (False, True),
    "mlp": ("gelu_tanh", "gelu_exact"),
}
_SIZES = ("hidden_dim", "num_layers", "num_heads", "mlp_dim")
_RATES = ("dropout_rate", "attention_dropout_rate", "drop_path_rate")


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """The architecture of a Vision Transformer: everything about it but the image size and the head's classes.

    Args:
        patch_size: Side of a square patch in pixels, or a pair (height, width).
        hidden_dim: Width D of the tokens. A multiple of `num_heads`.
        num_layers: Number L of encoder blocks.
        num_heads: Number K of attention heads.
        mlp_dim: Width M of the hidden layer of each block's MLP.
        stem: `None`: the image is cut into patches directly.
        pooling: What the head reads: `"token"`, the class token (ViT eq. 4); `"avg"`, the mean of the patch tokens
            (ViT, appendix D.3); `None`, all tokens, for models without a head.
        class_token: `None`: present unless `pooling` is `"avg"`. `True` or `False`: whatever the pooling.
        distillation_token: `False`: no second class token.
        num_register_tokens: 0: no registers.
        norm_placement: `"before_pooling"`: the final LayerNorm stands before the pooling.
        position_embedding: `"learned_1d"`, one learned row for each token (ViT eq. 1); `"sincos_2d"`, fixed sines and
            cosines of both coordinates (arXiv 2205.01580); `"none"`.
        position_placement: `"stem"`: positions are added once, before the first block.
        num_position_prefix_rows: Rows of the learned table that belong to the class token. `None`: one for each class
            token. 0: the table covers the patches only.
        representation_dim: Width of the tanh layer `pre_logits` between pooling and classifier (ViT, section 3.1), or
            `None` for no such layer.
        head_bias: Initial value of the classifier's bias (its kernel starts at zero).
        layer_scale: `None`: residual branches are added unscaled.
        qk_norm: `False`: queries and keys are not normalised.
        pre_norm: `False`: no LayerNorm before the first block.
        crop_to_patches: `True`: rows and columns of pixels that do not fill a patch are cut off at the bottom and the
            right. `False`: such an image size is refused.
        mlp: `"gelu_tanh"`, the tanh approximation of GELU, as Google's models use, or `"gelu_exact"`, with erf.
        layer_norm_epsilon: Added to the variance in every LayerNorm.
        dropout_rate: Dropout after the position embedding, the attention's output and both MLP layers. In [0, 1).
        attention_dropout_rate: Dropout of the attention weights. In [0, 1).
        drop_path_rate: Stochastic depth (arXiv 1603.09382) of the last block; it grows linearly from 0 at the first.
            In [0, 1).

    Raises:
        ValueError: If a value is impossible or has no part here; the message says what is accepted.

    Example:

    >>> import keras_vit
    >>> config = keras_vit.ViTConfig(patch_size=4, hidden_dim=48, num_layers=2, num_heads=3, mlp_dim=96)
    >>> config.patch_shape, config.num_class_tokens
    ((4, 4), 1)
    """

    patch_size: int | tuple[int, int]
    hidden_dim: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    stem: None = None
    pooling: str | None = "token"
    class_token: bool | None = None
    distillation_token: bool = False
    num_register_tokens: int = 0
    norm_placement: str = "before_pooling"
    position_embedding: str = "learned_1d"
    position_placement: str = "stem"
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

    def __post_init__(self):
        for field, choices in CHOICES.items():
            _check_choice(field, getattr(self, field), choices)
        sizes = {field: check_positive_integer(field, getattr(self, field)) for field in _SIZES}
        sizes["patch_size"] = check_patch_size(self.patch_size)
        if self.representation_dim is not None:
            sizes["representation_dim"] = check_positive_integer("representation_dim", self.representation_dim)
        for field, size in sizes.items():
            object.__setattr__(self, field, size)  # Plain integers, whatever kind of integers came in.
        for field in _RATES:
            check_rate(field, getattr(self, field))
        if not (_is_number(self.layer_norm_epsilon) and self.layer_norm_epsilon > 0):
            raise ValueError(f"layer_norm_epsilon must be a positive number. Received: {self.layer_norm_epsilon!r}")
        if not _is_number(self.head_bias):
            raise ValueError(f"head_bias must be a number. Received: {self.head_bias!r}")
        self._check_combinations()

    def _check_combinations(self):
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                f"hidden_dim must be a multiple of num_heads, so that every head is equally wide. Received: "
                f"hidden_dim={self.hidden_dim}, num_heads={self.num_heads}"
            )
        if self.position_embedding == "sincos_2d" and (self.hidden_dim % 4 or self.hidden_dim < 8):
            raise ValueError(
                f"position_embedding='sincos_2d' needs a hidden_dim that is a multiple of 4 and at least 8 (a sine and "
                f"a cosine of each coordinate). Received: hidden_dim={self.hidden_dim}"
            )
        if self.pooling == "token" and self.class_token is False:
            raise ValueError(
                "pooling='token' reads the class token, which class_token=False removes. Use pooling='avg'."
            )
        rows = self.num_position_prefix_rows
        if rows is not None and rows not in range(self.num_class_tokens + 1):
            raise ValueError(
                f"num_position_prefix_rows must be None or from 0 to {self.num_class_tokens}, the number of class "
                f"tokens of this model. Received: {rows!r}"
            )

    @property
    def patch_shape(self):
        """(height, width) of a patch in pixels."""
        return self.patch_size if isinstance(self.patch_size, tuple) else (self.patch_size, self.patch_size)

    @property
    def num_class_tokens(self):
        """How many tokens stand before those of the patches."""
        return int(self.pooling != "avg" if self.class_token is None else self.class_token)

    @property
    def position_prefix_rows(self):
        """`num_position_prefix_rows` with its default resolved."""
        return self.num_class_tokens if self.num_position_prefix_rows is None else self.num_position_prefix_rows

    def replace(self, **changes):
        """A copy with some fields changed. A name that is not a field raises a TypeError with the nearest ones."""
        fields = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in fields:
                hint = did_you_mean(name, fields)
                raise TypeError(f"{name!r} is not a field of ViTConfig.{hint} Fields: {', '.join(fields)}")
        return dataclasses.replace(self, **changes)


def check_rate(name, value):
    """Refuses what is not a probability in [0, 1)."""
    if not (_is_number(value) and 0 <= value < 1):
        raise ValueError(f"{name} must be at least 0 and less than 1. Received: {value!r}")


def check_positive_integer(name, value):
    """Refuses what is not an integer of at least 1; returns it as an `int`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be a positive integer. Received: {value!r}")
    return int(value)


def check_patch_size(patch_size):
    """Refuses what is neither a positive integer nor a pair of them; returns an `int` or a tuple of two."""
    if not isinstance(patch_size, (tuple, list)):
        return check_positive_integer("patch_size", patch_size)
    if len(patch_size) != 2:
        raise ValueError(f"patch_size must be an integer or a pair (height, width). Received: {patch_size!r}")
    return tuple(check_positive_integer("patch_size", side) for side in patch_size)


def did_you_mean(name, names):
    """ " Did you mean ...?" with the nearest of some names, or nothing if none is near."""
    near = difflib.get_close_matches(str(name), names, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _check_choice(name, value, choices):
    # By type too: 0 == False and 1 == True.
    if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices):
        raise ValueError(f"{name}={value!r} is not available. Available: {', '.join(map(repr, choices))}")


# name: (hidden_dim, num_layers, num_heads, mlp_dim, published patch sizes)
_SIZES_BY_NAME = {
    "Ti": (192, 12, 3, 768, (16,)),
    "S": (384, 12, 6, 1536, (16, 32)),
    "M": (512, 12, 8, 2048, (16,)),
    "B": (768, 12, 12, 3072, (8, 16, 32)),
    "L": (1024, 24, 16, 4096, (14, 16, 32)),
    "So400m": (1152, 27, 16, 4304, (14, 16)),
    "H": (1280, 32, 16, 5120, (14, 16)),
    "g": (1408, 40, 16, 6144, (14,)),
    "g-opt": (1536, 40, 16, 6144, (16,)),
    "G": (1664, 48, 16, 8192, (14,)),
}

VARIANTS = {
    f"{name}/{patch_size}": ViTConfig(patch_size, hidden_dim, num_layers, num_heads, mlp_dim)
    for name, (hidden_dim, num_layers, num_heads, mlp_dim, patch_sizes) in _SIZES_BY_NAME.items()
    for patch_size in patch_sizes
}
"""The published variants by their name in the papers, `"<size>/<patch size>"`."""


def get_variant(name):
    """The `ViTConfig` of a published variant; an unknown name raises a ValueError with the nearest ones."""
    if name not in VARIANTS:
        hint = did_you_mean(name, VARIANTS)
        raise ValueError(
            f"{name!r} is not a published variant.{hint} Available: {', '.join(VARIANTS)}; or give a "
            f"keras_vit.ViTConfig."
        )
    return VARIANTS[name]
