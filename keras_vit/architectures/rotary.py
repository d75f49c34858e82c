"""`RotaryConfig`, the rotary positions of a Vision Transformer."""

import dataclasses
import functools

from keras_vit.architectures.base import Config, optional, read_nested, setting
from keras_vit.checks import MAX_SIDE, check_grid_size, is_number


def _check_range(name, value, smallest, largest):
    if not (is_number(value) and smallest <= value <= largest):
        raise ValueError(f"{name} must be a number from {smallest:g} to {largest:g}. Received: {value!r}")
    return value


@dataclasses.dataclass(frozen=True)
class RotaryConfig(Config):
    """Rotary positions: the attention rotates queries and keys of patches by angles that depend on their position.

    A head's Dh channels form Dh / 2 pairs, and each pair is rotated like a complex number ("RoFormer", arXiv
    2104.09864; for images "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298). The product of a query
    and a key then depends on the offset between their patches. Class token, distillation token and registers are not
    rotated.

    The patch in row r and column c has the coordinates (y, x). With `kind="axial"`, half of the pairs are rotated by
    `y f_j` and the other half by `x f_j`, with the frequencies `f_j = base ** (-4 j / Dh)`, j = 0 ... Dh / 4 - 1. With
    `kind="mixed"`, each pair has two learned frequencies, f for y and g for x, and is rotated by `y f + x g`. The
    frequencies differ between heads and blocks.

    Args:
        kind: `"axial"` (DINOv3, EVA-02, Perception Encoder) or `"mixed"` (RoPE-Mixed of arXiv 2403.13298, section 3.2).
        base: Base of the frequencies, from 1e-3 to 1e12. With `kind="mixed"`, it defines their initial values.
        layout: The two channels of a pair. `"half"`: channel i and channel i + Dh / 2. `"interleaved"`: channel 2 i
            and channel 2 i + 1.
        coordinates: `"normalized"`: `y = 2 pi (2 (r + 1/2) / h - 1)` in a grid of h rows, and x is computed in
            the same way from the columns (DINOv3, arXiv 2508.10104). `"grid"`: y = r + offset and x = c + offset, in
            patches.
        reference_grid: (rows, columns) of the grid to which `"grid"` coordinates are scaled (EVA-02, arXiv 2303.11331):
            `y = (r + offset) / h * rows`. Both are at most 65,535. `None`: coordinates are not scaled.
        offset: Number that is added to the indices of rows and columns in `"grid"` coordinates, from -65,535 to 65,535.
        axis_order: `"yx"`: the first half of the pairs is rotated by y, the second half by x. `"xy"`: the opposite.
            With `kind="mixed"`, this is the order of the two learned frequencies.

    Raises:
        ValueError: If a value is invalid, or if `reference_grid` or `offset` is combined with normalized coordinates.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), rotary=keras_vit.RotaryConfig(), num_layers=1)
    >>> keras_vit.describe(model).config.rotary.base
    100.0
    """

    kind: str = setting(("axial", "mixed"), "axial")
    base: float = setting(functools.partial(_check_range, smallest=0.001, largest=1e12), 100.0)
    layout: str = setting(("half", "interleaved"), "half")
    coordinates: str = setting(("normalized", "grid"), "normalized")
    reference_grid: tuple[int, int] | None = setting(optional(check_grid_size), None)
    offset: float = setting(functools.partial(_check_range, smallest=-MAX_SIDE, largest=MAX_SIDE), 0.0)
    axis_order: str = setting(("yx", "xy"), "yx")

    def check_combinations(self):
        if self.coordinates == "normalized" and (self.reference_grid is not None or self.offset):
            raise ValueError(
                f"reference_grid and offset need coordinates='grid'. Received: coordinates='normalized', "
                f"reference_grid={self.reference_grid!r}, offset={self.offset!r}"
            )


def as_rotary_config(rotary):
    """Returns a `RotaryConfig` for a dictionary of its fields, as in the configs of layers, or for a `RotaryConfig`."""
    rotary = read_nested((RotaryConfig,), rotary) if isinstance(rotary, dict) else rotary
    if not isinstance(rotary, RotaryConfig):
        raise ValueError(f"rotary must be a keras_vit.RotaryConfig. Received: {rotary!r}")
    return rotary
