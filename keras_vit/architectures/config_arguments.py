"""The fields of `ViTConfig` as keyword arguments, for editors and type checkers."""

import typing

from keras_vit.architectures.vision_transformer import StemConfig


class ViTConfigArgumentsWithoutNumHeads(typing.TypedDict, total=False):
    """The fields of `ViTConfig` without `num_heads`, which is a separate argument of `from_pretrained`."""

    patch_size: int | tuple[int, int]
    hidden_dim: int
    num_layers: int
    mlp_dim: int
    stem: StemConfig | None
    pooling: str | None
    class_token: bool | None
    distillation_token: bool
    num_register_tokens: int
    norm_placement: str
    position_embedding: str
    position_placement: str
    position_interpolation: str
    num_position_prefix_rows: int | None
    representation_dim: int | None
    head_bias: float
    layer_scale: float | None
    qk_norm: bool
    pre_norm: bool
    crop_to_patches: bool
    mlp: str
    layer_norm_epsilon: float
    dropout_rate: float
    attention_dropout_rate: float
    drop_path_rate: float
    axial: bool
    token_merging: int


class ViTConfigArguments(ViTConfigArgumentsWithoutNumHeads, total=False):
    """The fields of `ViTConfig`."""

    num_heads: int
