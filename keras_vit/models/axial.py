"""Vision Transformers with axial attention: `AxialViT`, and one function for each size in the paper."""

import typing

import keras

from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.models.vit import ViT, published


def AxialViT(variant: str | ViTConfig = "B/32", *, pooling: str | None = "avg", **arguments: typing.Any) -> keras.Model:
    """Builds an Axial-ViT, whose blocks attend along the rows of the grid, then along its columns.

    The model is from ViT (arXiv 2010.11929), appendix D.6. Two blocks, one for each axis, replace each block of a ViT.
    Each of the two has its own LayerNorms, residual connections and MLP. The model has about twice the parameters of
    `keras_vit.ViT`, and twice the multiply-accumulates at 224 pixels. With N patches, attention needs about N^1.5
    operations instead of N^2. The patch tokens are averaged, because the paper does not define a class token for
    Axial-ViTs.

    Args:
        variant: As in `keras_vit.ViT`. The paper has `"B/32"` and `"B/16"`.
        pooling: `"avg"`, `"map"`, or `None` for all tokens (with `include_top=False` and `class_token=False`).
        **arguments: Any other argument of `keras_vit.ViT`. There are no published weights, so `weights` must be a
            `.weights.h5` file or `None`.

    Returns:
        A `keras.Model`, the same as `keras_vit.ViT(variant, axial=True, pooling=pooling, ...)` returns.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If a value is invalid, or if it cannot be combined with axial attention (class token, registers,
            relative positions).

    Example:

    >>> import keras_vit
    >>> model = keras_vit.AxialViT("Ti/16", classes=10, input_shape=(64, 96, 3), num_layers=2)
    >>> model.get_layer("encoder_block_1").column.attention.num_heads
    3
    """
    return ViT(variant, axial=True, pooling=pooling, **arguments)


AxialViTB16 = published("AxialViTB16", "B/16", module=__name__, axial=True, pooling="avg")
AxialViTB32 = published("AxialViTB32", "B/32", module=__name__, axial=True, pooling="avg")

__all__ = ["AxialViT", "AxialViTB16", "AxialViTB32"]
