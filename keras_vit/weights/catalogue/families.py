"""Families of weights: numerics and image preparation that all files of one code base share."""

import dataclasses
import types
from collections.abc import Mapping

from keras_vit.checks import shown
from keras_vit.weights.catalogue.tables import read_table


@dataclasses.dataclass(frozen=True)
class Family:
    """Numerics and image preparation that all files of one code base share.

    The settings in the config beside a file have precedence over the numerics.

    Args:
        mean: Mean of the pixels scaled to [0, 1]: a number, or one number for each channel.
        std: Standard deviation of the scaled pixels: a number, or one number for each channel.
        interpolation: Interpolation of images: `"bilinear"` or `"bicubic"`.
        gelu: `"gelu_tanh"`, `"gelu_exact"` or `"quick_gelu"`.
        position_interpolation: Interpolation of position embeddings: `"align_corners"`, `"bilinear_antialias"`,
            `"bicubic"`, `"bicubic_antialias"` or `"bicubic_offset"`.
        resize: Length in pixels of the short side after resizing, or (height, width). `None`: images are resized to
            the model's size.
        crop: Side in pixels of the centre crop after resizing, or `None`.
        layer_norm_epsilon: Number added to the variance in every LayerNorm.
        num_heads: {width of the tokens: number of attention heads}, for files that do not contain this number. Widths
            with the same number in `VARIANTS` are left out.
        note: Which models these are, or where their settings come from.
    """

    mean: float | tuple[float, float, float]
    std: float | tuple[float, float, float]
    interpolation: str
    gelu: str
    position_interpolation: str
    resize: int | tuple[int, int] | None = None
    crop: int | None = None
    layer_norm_epsilon: float = 1e-6
    num_heads: Mapping[int, int] = dataclasses.field(default_factory=dict)
    note: str = ""

    @property
    def config_fields(self):
        """Fields of `ViTConfig` that follow from the family."""
        return {
            "mlp": self.gelu,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "position_interpolation": self.position_interpolation,
        }


_JSON = ("mean", "std", "resize", "crop", "layer_norm_epsilon", "num_heads")


def _read_families():
    for row in read_table("families.tsv", _JSON):
        name, num_heads = row.pop("name"), row.pop("num_heads", {})
        yield name, Family(**row, num_heads={int(width): number for width, number in num_heads.items()})


FAMILIES = types.MappingProxyType(dict(_read_families()))
"""{name of a family, as in `CatalogueEntry.family`: `Family`}"""
FAMILY_ALIASES = types.MappingProxyType({"augreg": "google"})
"""Other names of families. AugReg (arXiv 2106.10270) has the image preparation of Google's other files."""


def preprocessing_of(family, image_size):
    """Image preparation for a family of weights.

    Args:
        family: A key of `FAMILIES`.
        image_size: Image size of the model in pixels: a number, or (height, width). The publisher's size after resizing
            is multiplied by `image_size` and divided by the publisher's crop size. If `image_size` is not square,
            images are resized to a fixed height and width. If only the short side had a fixed length, the image could
            be smaller than the crop.

    Returns:
        The arguments `mean`, `std`, `resize`, `crop` and `interpolation` of `Preprocessing`, as a dictionary.

    Raises:
        ValueError: If the family is unknown.

    Example:

    >>> from keras_vit.weights.catalogue.families import preprocessing_of
    >>> deit = preprocessing_of("deit", 384)
    >>> deit["resize"], deit["crop"]
    (438, (384, 384))
    """
    if family not in FAMILIES:
        raise ValueError(f"{shown(family)} is not a family of weights. Accepted: {', '.join(FAMILIES)}")
    facts = FAMILIES[family]
    size = tuple(image_size) if isinstance(image_size, (tuple, list)) else (image_size, image_size)
    resize, crop = size, None
    if facts.resize is not None:
        sides = (facts.resize, facts.resize) if isinstance(facts.resize, int) else facts.resize
        height, width = (pixels * side // facts.crop for pixels, side in zip(size, sides, strict=True))
        resize, crop = height if isinstance(facts.resize, int) and height == width else (height, width), size
    return {"mean": facts.mean, "std": facts.std, "resize": resize, "crop": crop, "interpolation": facts.interpolation}
