"""Vision Transformers with axial attention: `AxialViT`, and one function for each size in the paper."""

import typing

import keras

from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.models.vit import ViT, published


def AxialViT(variant: str | ViTConfig = "B/32", *, pooling: str | None = "avg", **arguments: typing.Any) -> keras.Model:
    """Builds an Axial-ViT. Its blocks attend along the rows of the grid, then along its columns.

    ViT (arXiv 2010.11929), appendix D.6: every block becomes two, one for each axis, each with its own LayerNorms,
    residual connections and MLP. The model has about twice the parameters of `keras_vit.ViT`, and twice the
    multiply-accumulates at 224 pixels. With N patches, attention costs N^1.5 instead of N^2. The paper does not define
    a class token for it, so the patch tokens are averaged.

    Args:
        variant: As for `keras_vit.ViT`; the paper's are `"B/32"` and `"B/16"`.
        pooling: `"avg"` or `"map"`; `None` for all tokens, with `include_top=False` and `class_token=False`.
        **arguments: Any other argument of `keras_vit.ViT`. There are no published weights; `weights` accepts
            `.weights.h5` files.

    Returns:
        A `keras.Model`, as `keras_vit.ViT(variant, axial=True, pooling=pooling, ...)` builds it.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If a value is impossible or cannot be combined with axial attention: class token, registers,
            relative positions.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.AxialViT("Ti/16", classes=10, input_shape=(64, 96, 3), num_layers=2)
    >>> model.get_layer("encoder_block_1").column.attention.num_heads
    3
    """
    return ViT(variant, axial=True, pooling=pooling, **arguments)


AxialViTB16 = published("AxialViTB16", "B/16", axial=True, pooling="avg")
AxialViTB32 = published("AxialViTB32", "B/32", axial=True, pooling="avg")

__all__ = ["AxialViT", "AxialViTB16", "AxialViTB32"]
