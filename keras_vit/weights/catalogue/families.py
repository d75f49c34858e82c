"""Families of weights: numerics and image preparation that all files of one code base share."""

import dataclasses
import types
from collections.abc import Mapping

from keras_vit.checks import shown


@dataclasses.dataclass(frozen=True)
class Family:
    """Numerics and image preparation that all files of one code base share.

    The settings in the config beside a file have precedence over the numerics.

    Args:
        mean: Mean of the pixels scaled to [0, 1]: a number, or one number for each channel.
        std: Standard deviation of the scaled pixels: a number, or one number for each channel.
        resize: Length in pixels of the short side after resizing, or (height, width). `None`: images are resized to
            the model's size.
        crop: Side in pixels of the centre crop after resizing, or `None`.
        interpolation: Interpolation of images: `"bilinear"` or `"bicubic"`.
        gelu: `"gelu_tanh"`, `"gelu_exact"` or `"quick_gelu"`.
        position_interpolation: Interpolation of position embeddings: `"align_corners"`, `"bilinear_antialias"`,
            `"bicubic"`, `"bicubic_antialias"` or `"bicubic_offset"`.
        layer_norm_epsilon: Number added to the variance in every LayerNorm.
        num_heads: {width of the tokens: number of attention heads}, for files that do not contain this number. Widths
            with the same number in `VARIANTS` are left out.
    """

    mean: float | tuple[float, float, float]
    std: float | tuple[float, float, float]
    resize: int | tuple[int, int] | None
    crop: int | None
    interpolation: str
    gelu: str
    position_interpolation: str
    layer_norm_epsilon: float = 1e-6
    num_heads: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @property
    def config_fields(self):
        """Fields of `ViTConfig` that follow from the family."""
        return {
            "mlp": self.gelu,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "position_interpolation": self.position_interpolation,
        }


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SATELLITE = (0.430, 0.411, 0.296), (0.213, 0.156, 0.143)
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_DINOV3_HEADS = types.MappingProxyType({1024: 16, 1280: 20, 4096: 32})
_EVA02_HEADS = types.MappingProxyType({192: 3, 384: 6, 768: 12, 1024: 16, 1792: 16})

FAMILIES = types.MappingProxyType(
    {
        "google": Family(0.5, 0.5, None, None, "bilinear", "gelu_tanh", "align_corners"),
        "big_vision": Family(0.5, 0.5, 256, 224, "bilinear", "gelu_tanh", "align_corners"),
        # big_vision's configs/proj/flexivit: resize(res // 7 * 8), central_crop(res), at 240 pixels.
        "flexivit": Family(0.5, 0.5, (272, 272), 240, "bilinear", "gelu_tanh", "bilinear_antialias"),
        "siglip": Family(0.5, 0.5, None, None, "bilinear", "gelu_tanh", "align_corners"),
        # Models that timm trained, with timm's image preparation for 224 pixels.
        "timm": Family(0.5, 0.5, 248, 224, "bicubic", "gelu_exact", "bicubic_antialias"),
        "deit": Family(*_IMAGENET, 256, 224, "bicubic", "gelu_exact", "bicubic_antialias"),
        # README_revenge.md of facebookresearch/deit: --eval-crop-ratio 1.0.
        "deit3": Family(*_IMAGENET, 224, 224, "bicubic", "gelu_exact", "bicubic_antialias"),
        "mae": Family(*_IMAGENET, 256, 224, "bicubic", "gelu_exact", "bicubic"),
        "dino": Family(*_IMAGENET, 256, 224, "bicubic", "gelu_exact", "bicubic_offset"),
        "dinov2": Family(*_IMAGENET, 256, 224, "bicubic", "gelu_exact", "bicubic_offset"),
        "dinov2_registers": Family(*_IMAGENET, 256, 224, "bicubic", "gelu_exact", "bicubic_antialias"),
        "dinov3": Family(*_IMAGENET, None, None, "bilinear", "gelu_exact", "bicubic_antialias", 1e-5, _DINOV3_HEADS),
        # DINOv3 for satellite images (SAT-493M).
        "dinov3_sat": Family(
            *_SATELLITE, None, None, "bilinear", "gelu_exact", "bicubic_antialias", 1e-5, _DINOV3_HEADS
        ),
        # facebookresearch/moco-v3, main_lincls.py.
        "mocov3": Family(*_IMAGENET, 256, 224, "bilinear", "gelu_exact", "bicubic_antialias", num_heads={384: 12}),
        "ijepa": Family(*_IMAGENET, 224, 224, "bicubic", "gelu_exact", "bicubic"),
        "clip": Family(*_CLIP, 224, 224, "bicubic", "quick_gelu", "bicubic", 1e-5),
        # OpenCLIP's own models, which have the exact GELU, such as those for LAION-2B and DataComp.
        "open_clip": Family(
            *_CLIP, 224, 224, "bicubic", "gelu_exact", "bicubic_antialias", 1e-5, {256: 4, 640: 10, 896: 14}
        ),
        "eva": Family(*_CLIP, None, None, "bicubic", "gelu_exact", "bicubic_antialias"),
        "eva02": Family(*_CLIP, None, None, "bicubic", "gelu_exact", "bicubic_antialias", num_heads=_EVA02_HEADS),
        "eva_clip": Family(*_CLIP, 224, 224, "bicubic", "gelu_exact", "bicubic_antialias", num_heads=_EVA02_HEADS),
        "pe": Family(0.5, 0.5, None, None, "bilinear", "gelu_exact", "bicubic_antialias", 1e-5, {1024: 16, 1536: 16}),
        "rope_vit": Family(*_IMAGENET, 248, 224, "bicubic", "gelu_exact", "bicubic_antialias"),
        "tipsv2": Family(0.0, 1.0, None, None, "bilinear", "gelu_exact", "bicubic_antialias"),
        "intern": Family(*_IMAGENET, None, None, "bicubic", "gelu_exact", "bicubic_antialias"),
        # ImageNet-21K-P (arXiv 2104.10972).
        "miil": Family(0.0, 1.0, 256, 224, "bilinear", "gelu_exact", "bicubic_antialias"),
        # torchvision's first weights of ResNets. The layout of torchvision's Vision Transformers is not supported.
        "torchvision": Family(*_IMAGENET, 256, 224, "bilinear", "gelu_exact", "bicubic"),
        # Google's weights with the numerics of transformers.
        "huggingface_vit": Family(0.5, 0.5, None, None, "bilinear", "gelu_exact", "bicubic", 1e-12),
    }
)
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
