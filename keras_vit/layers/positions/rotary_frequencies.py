"""Learned frequencies of rotary positions. Shapes: T tokens, K heads, Dh channels of a head."""

import math
import typing

import keras
from keras import ops

from keras_vit.architectures.rotary import RotaryConfig, as_rotary_config
from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.rotation import axial_frequencies, check_key_dim, rotation


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryFrequencies(BaseLayer):
    """The learned frequencies of the rotary positions of one block (RoPE-Mixed, arXiv 2403.13298, section 3.2).

    In each head, the pair i of channels is rotated by `a f_i + b g_i`, where (a, b) are the coordinates of the token.
    As in the authors' code, the initial frequencies are those of axial rotary positions, rotated by a random angle in
    each head. Frequencies are stored and used in float32 under any precision policy.

    Args:
        rotary: `keras_vit.RotaryConfig` with `kind="mixed"`.
        num_heads: Number K of heads.
        key_dim: Number Dh of channels of a head, a multiple of 4.

    Call arguments:
        positions: (2, T), from `RotaryPositionEmbedding`.

    Returns:
        (2, K, T, Dh), as `rotate` of `layers/ops/rotation.py` needs it.

    Raises:
        ValueError: If `rotary` is not mixed, or if another argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> rotary = keras_vit.RotaryConfig(kind="mixed", coordinates="grid")
    >>> layer = keras_vit.layers.RotaryFrequencies(rotary, num_heads=3, key_dim=8)
    >>> tuple(layer(keras.ops.ones((2, 7))).shape)
    (2, 3, 7, 8)
    """

    def __init__(self, rotary: RotaryConfig, num_heads: int, key_dim: int, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.rotary = as_rotary_config(rotary)
        if self.rotary.kind != "mixed":
            raise ValueError(
                f"rotary must have kind='mixed'. Axial frequencies are not learned. Received: {self.rotary}"
            )
        self.num_heads = check_positive_integer("num_heads", num_heads)
        self.key_dim = check_key_dim(key_dim)
        self.autocast = False

    def build(self, positions_shape):
        arguments = {"name": "frequencies", "dtype": "float32", "autocast": False}
        shape = (2, self.num_heads, self.key_dim // 2)
        self.frequencies = self.add_weight(shape, self._initial_frequencies, **arguments)

    def _initial_frequencies(self, shape, dtype=None):
        frequencies = axial_frequencies(self.rotary.base, self.key_dim)  # (Dh / 4,)
        angles = keras.initializers.RandomUniform(0.0, 2 * math.pi)((self.num_heads, 1))
        waves = [(ops.cos(angles), -ops.sin(angles)), (ops.sin(angles), ops.cos(angles))]
        rows = [ops.concatenate([frequencies * wave for wave in pair], axis=1) for pair in waves]
        return ops.cast(ops.stack(rows), dtype or "float32")

    def call(self, positions):
        # A matrix product would round its factors on TPUs, on some GPUs, and in LiteRT files with weights in 8 bits.
        products = positions[:, None, :, None] * self.frequencies[:, :, None, :]  # (2, K, T, Dh / 2)
        return rotation(ops.sum(products, axis=0), self.rotary.layout)

    def compute_output_shape(self, positions_shape):
        return (2, self.num_heads, positions_shape[1], self.key_dim)

    def compute_output_spec(self, positions):
        return keras.KerasTensor(self.compute_output_shape(positions.shape), "float32")
