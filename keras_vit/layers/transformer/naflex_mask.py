"""Which patches are no padding. Shapes: B batch, N patches, T tokens."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_count, check_positive_integer
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class NaFlexMask(BaseLayer):
    """Computes which tokens of images of different sizes are no padding.

    Args:
        max_patches: Number N of patch tokens, which are the last tokens.
        num_prefix_tokens: Number of tokens before them, which are never padding.

    Call arguments:
        grid: Integers (B, 2), rows and columns of patches.

    Returns:
        Booleans (B, T), with T = `num_prefix_tokens` + N.

    Example:

    >>> import numpy as np, keras, keras_vit
    >>> mask = keras_vit.layers.NaFlexMask(max_patches=4, num_prefix_tokens=1)(np.array([[1, 3]]))
    >>> keras.ops.convert_to_numpy(mask).tolist()
    [[True, True, True, True, False]]
    """

    def __init__(self, max_patches: int, num_prefix_tokens: int = 0, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.max_patches = check_positive_integer("max_patches", max_patches)
        self.num_prefix_tokens = check_count("num_prefix_tokens", num_prefix_tokens)

    def call(self, grid):
        used = ops.cast(grid[:, :1] * grid[:, 1:], "int32") + self.num_prefix_tokens
        return ops.arange(self.num_prefix_tokens + self.max_patches, dtype="int32") < used

    def compute_output_spec(self, grid):
        return keras.KerasTensor((grid.shape[0], self.num_prefix_tokens + self.max_patches), "bool")
