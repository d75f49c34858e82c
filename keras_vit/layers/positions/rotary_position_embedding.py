"""Rotary positions. Shapes: B batch, h w grid, N = h w patches, T tokens, Dh channels of a head."""

import math
import typing

import keras
from keras import ops

from keras_vit.architectures.rotary import RotaryConfig, as_rotary_config
from keras_vit.checks import check_count
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.rotation import axial_frequencies, check_key_dim, rotation


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryPositionEmbedding(BaseLayer):
    """Computes the rotary positions of the tokens, for the argument `positions` of each `MultiHeadSelfAttention`.

    `RotaryConfig` has the equations. The result is the same for all images and blocks, so a model contains one of these
    layers. It has no weights, accepts any grid, and computes in float32 under any precision policy.

    Args:
        rotary: `keras_vit.RotaryConfig`
        key_dim: Number Dh of channels of a head, a multiple of 4.
        num_prefix_tokens: Number of tokens before the patch tokens. These tokens are not rotated.

    Call arguments:
        patches: (B, h, w, D), the map of patch tokens. Only its size is used.

    Returns:
        With `kind="axial"`, (2, T, Dh): cosines and signed sines, as `rotate` of `layers/ops/rotation.py` needs them.
        With `kind="mixed"`, (2, T): the coordinates in the order of `axis_order`. They are 0 for prefix tokens.

    Raises:
        ValueError: If `key_dim` is not a multiple of 4, or if another argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.RotaryPositionEmbedding(keras_vit.RotaryConfig(), key_dim=8, num_prefix_tokens=1)
    >>> tuple(layer(keras.ops.zeros((5, 2, 3, 16))).shape)
    (2, 7, 8)
    """

    def __init__(self, rotary: RotaryConfig, key_dim: int, num_prefix_tokens: int = 0, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.rotary = as_rotary_config(rotary)
        self.key_dim = check_key_dim(key_dim)
        self.num_prefix_tokens = check_count("num_prefix_tokens", num_prefix_tokens)
        self.autocast = False

    def call(self, patches):
        height, width = ops.shape(patches)[1:3]
        y, x = (self._coordinates(axis, size) for axis, size in enumerate((height, width)))
        y, x = ops.repeat(y, width), ops.tile(x, (height,))  # (N,)
        first, second = (y, x) if self.rotary.axis_order == "yx" else (x, y)
        if self.rotary.kind == "mixed":
            return ops.pad(ops.stack([first, second]), [(0, 0), (self.num_prefix_tokens, 0)])
        frequencies = axial_frequencies(self.rotary.base, self.key_dim)
        angles = ops.concatenate([first[:, None] * frequencies, second[:, None] * frequencies], axis=1)
        return rotation(ops.pad(angles, [(self.num_prefix_tokens, 0), (0, 0)]), self.rotary.layout)

    def _coordinates(self, axis, size):
        """Returns the coordinates of all rows (`axis` 0) or columns (1) of a grid, (size,)."""
        indices = ops.cast(ops.arange(size), "float32")
        if self.rotary.coordinates == "normalized":
            return 2 * math.pi * (2 * (indices + 0.5) / ops.cast(size, "float32") - 1)
        coordinates = indices + self.rotary.offset
        if self.rotary.reference_grid is None:
            return coordinates
        return coordinates / ops.cast(size, "float32") * self.rotary.reference_grid[axis]

    def compute_output_shape(self, patches_shape):
        _, height, width, _ = patches_shape
        num_tokens = None if None in (height, width) else height * width + self.num_prefix_tokens
        return (2, num_tokens) if self.rotary.kind == "mixed" else (2, num_tokens, self.key_dim)

    def compute_output_spec(self, patches):
        return keras.KerasTensor(self.compute_output_shape(patches.shape), "float32")
