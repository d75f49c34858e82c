"""Catalogue of published weights and their image preparation. This module downloads nothing."""

import dataclasses
import difflib
import re
import types
from collections.abc import Mapping

from keras_vit.architectures.spellings import spelled_variant
from keras_vit.architectures.vision_transformer import VARIANTS
from keras_vit.checks import did_you_mean, shown
from keras_vit.licences import warn_if_restricted
from keras_vit.weights.catalogue_entry import CLIP_PIXELS, IMAGENET_PIXELS
from keras_vit.weights.published_clip import clip_entries
from keras_vit.weights.published_dinov3 import dinov3_entries
from keras_vit.weights.published_eva import eva_entries
from keras_vit.weights.published_google import AUGREG_STEM, augreg_entry, google_entries
from keras_vit.weights.published_meta import meta_entries
from keras_vit.weights.published_pe import pe_entries
from keras_vit.weights.published_timm import timm_entries
from keras_vit.weights.short_names import ALIASES, matching_entries, names_of_variant


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


_IMAGENET = IMAGENET_PIXELS["mean"], IMAGENET_PIXELS["std"]
_SATELLITE = (0.430, 0.411, 0.296), (0.213, 0.156, 0.143)
_CLIP = CLIP_PIXELS["mean"], CLIP_PIXELS["std"]
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


def protocol(family, image_size):
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

    >>> from keras_vit.weights.catalogue import protocol
    >>> deit = protocol("deit", 384)
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


def preparation_of(entry):
    """Image preparation of a `CatalogueEntry`, as arguments of `Preprocessing`."""
    return {**protocol(entry.family, entry.image_size), **entry.pixels}


PUBLISHERS = (google_entries, meta_entries, dinov3_entries, eva_entries, pe_entries, clip_entries, timm_entries)
"""The functions that yield the entries"""
ENTRIES = types.MappingProxyType({entry.name: entry for entries in PUBLISHERS for entry in entries()})
"""The catalogue: {name: `CatalogueEntry`}"""


def list_weights(variant: str | None = None) -> list[str]:
    """Returns the names of the published weights in the catalogue.

    In addition, each of the 50,000 AugReg files (arXiv 2106.10270) can be loaded by its name without `.npz`, and many
    weights by a short name such as `"dinov3-s16"` or by the name of their repository (see docs/weights.md). Any other
    file can be loaded by its path or address.

    Args:
        variant: Variant such as `"B/16"` whose weights are listed. `None`: all variants.

    Returns:
        A sorted list of names `"<variant>@<weights>"`.

    Raises:
        ValueError: If there are no published weights for the variant.

    Example:

    >>> from keras_vit.weights.catalogue import list_weights
    >>> list_weights("S/8")
    ['S/8@dino', 'S/8@dino-huggingface', 'S/8@dino-original']
    """
    variants = sorted({entry.variant for entry in ENTRIES.values()})
    if variant not in (None, *variants):
        hint = did_you_mean(variant, variants)
        raise ValueError(
            f"The catalogue has no weights for the variant {shown(variant)}.{hint} Variants with weights: "
            f"{', '.join(variants)}"
        )
    return sorted(name for name, entry in ENTRIES.items() if variant in (None, entry.variant))


def get_entry(name, variant=None):
    """Returns the catalogue entry of published weights.

    Args:
        name: One of these names:

            * `"<variant>@<weights>"`, or `"<weights>"` if `variant` is given. For `<weights>`, `imagenet` is short for
              the variant's AugReg file for ImageNet-1k at 224 pixels. `dinov3`, `eva02` and `clip` are short for
              `dinov3-lvd1689m`, `eva02-in22k-224` and `clip-openai-224`.
            * The name of an AugReg file without `.npz`.
            * A short name such as `"dinov3-s16"`, or the name of a repository on the Hugging Face Hub, such as
              `"vit_small_patch16_dinov3.lvd1689m"` of timm. See `short_names.matching_entries`.
        variant: Variant of the model, or `None`.

    Returns:
        A `CatalogueEntry`.

    Raises:
        ValueError: If the name is unknown, belongs to another variant, or could mean several weights. The message lists
            the candidates.

    Example:

    >>> from keras_vit.weights.catalogue import get_entry
    >>> entry = get_entry("imagenet", variant="Ti/16")
    >>> entry.name, entry.image_size, entry.top1
    ('Ti/16@augreg-i21k-i1k-224', 224, 75.45)
    >>> get_entry("dinov3-s16").name
    'S/16@dinov3-lvd1689m'
    """
    entry = exact_entry(name, variant)
    if entry is None and "@" not in name:
        found = matching_entries(name, ENTRIES)
        if len(found) > 1:
            names = ", ".join(entry.name for entry in found)
            raise ValueError(f"{name!r} could mean several weights. Pass one of these names: {names}")
        entry = next(iter(found), None)
    own_variant, _, weights = name.rpartition("@")
    if entry is None:
        raise ValueError(_unknown(own_variant or variant, weights))
    for expected in (own_variant, variant):
        if expected not in ("", None, entry.variant):
            raise ValueError(f"{name!r} are weights of {entry.variant}, not of {expected}. The variants must be equal.")
    return entry


def exact_entry(name, variant=None):
    """Returns the entry of a name as in `list_weights`, or of an AugReg file. `None` for any other name."""
    own_variant, _, weights = name.rpartition("@")
    if AUGREG_STEM.fullmatch(weights):
        return augreg_entry(weights)
    return ENTRIES.get(f"{own_variant or variant}@{ALIASES.get(weights, weights)}")


def entry_at(address):
    """Finds the entry of an address. Returns the entry or `None`, and whether the address has the entry's weights.

    Another revision or another file of the entry's repository has the same licence, but can contain other weights.
    """
    address = address.replace("gs://", "https://storage.googleapis.com/", 1)
    for entry in ENTRIES.values():
        path, _, rest = address.partition(entry.url)
        if address and not path and rest[:1] in ("", "/", "@"):
            return entry, re.fullmatch(r"(@main)?(/|/model\.safetensors)?", rest) is not None
    stem = address.rpartition("/")[2].removesuffix(".npz")
    entry = augreg_entry(stem) if AUGREG_STEM.fullmatch(stem) else None
    return (entry, True) if entry and entry.url == address else (None, False)


def origin_of(layer):
    """The `origin` of a `Preprocessing` layer.

    Files that were written before `origin` existed contain only `source`. For these files, the licence is that of the
    catalogue entry of `source`, and the caller is warned if the licence restricts the use of the weights. Returns
    `None` if the origin is unknown.
    """
    if layer.origin is not None or layer.source is None:
        return layer.origin
    entry = exact_entry(layer.source) or entry_at(layer.source)[0]
    if entry is None:
        return None
    warn_if_restricted(entry.licence, layer.source)
    return {"source": layer.source, "licence": entry.licence, "checksum": None}


def _unknown(variant, weights):
    """Error message for a name that is not in the catalogue."""
    names = sorted(name for name, entry in ENTRIES.items() if entry.variant == variant)
    if weights in ALIASES and names:
        return (
            f"There are no weights {weights!r} (short for {ALIASES[weights]!r}) for the variant {variant!r}. "
            f"Weights of this variant: {', '.join(names)}"
        )
    if variant in VARIANTS and not names:
        return (
            f"No weights are published for the variant {variant!r}. Build it with weights=None, or pass the path or "
            f"address of your own weights."
        )
    full_name = f"{variant}@{weights}" if variant else weights
    similar = (_names_by_address(weights) or _names_by_variant(weights))[:3]
    if re.fullmatch(r"vit_\w+\.\w+", weights):
        similar = [*similar[:2], f"hf://timm/{weights}"]
    nearest = f" Did you mean {' or '.join(map(repr, similar))}?"
    hint = nearest if similar else did_you_mean(full_name, names or names_of_variant(weights, ENTRIES) or ENTRIES)
    return (
        f"{shown(full_name)} is not the name of published weights.{hint} Accepted: '<variant>@<weights>' as in "
        f"keras_vit.list_weights(), a short name such as 'dinov3-s16', the name of a repository in the catalogue, or "
        f"the name of an AugReg file without '.npz'."
    )


def _names_by_address(name):
    """Catalogue names of the files or repositories called `name` or, if there are none, of those that start with it.

    If there are none of either kind, and `name` looks like a repository on the Hub, its `hf://` address is returned.
    """
    same = [entry.name for entry in ENTRIES.values() if entry.url.endswith(f"/{name}")]
    alike = [entry.name for entry in ENTRIES.values() if name and entry.url.rpartition("/")[2].startswith(name)]
    if re.fullmatch(r"[\w-]+/[\w.-]+", name) and name not in VARIANTS and not same + alike:
        return [f"hf://{name}"]
    return same or alike


def _names_by_variant(name):
    """Catalogue names for a variant, best matches first. The variant may be spelled as in another project."""
    variant = spelled_variant(name, VARIANTS) if "vit" in name.lower() else name
    names = [entry for entry in ENTRIES if entry.startswith(f"{variant}@")]
    tag = ALIASES["imagenet"] if name == variant else name.rpartition(".")[2]
    return sorted(names, key=lambda entry: -difflib.SequenceMatcher(None, tag, entry.partition("@")[2]).ratio())
