"""The fields of `ViTConfig` as keyword arguments, for editors and type checkers."""

import typing

from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.architectures.stem import ConvStemConfig, StemConfig


class ViTConfigArgumentsWithoutNumHeads(typing.TypedDict, total=False):
    """The fields of `ViTConfig` without `num_heads`, which is a separate argument of `from_pretrained`."""

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
