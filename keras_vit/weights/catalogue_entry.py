"""`CatalogueEntry`, and functions that build entries."""

import dataclasses
import re
import types
from collections.abc import Mapping

from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.weights.timm_pretrained_cfg import resize_and_crop

COPY_ENDINGS = re.compile(r"-(original|huggingface|bigvision|qkvb)$")
"""Endings of the names of copies in another layout. Without its ending, such a name is that of the preferred copy."""
IMAGENET_PIXELS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CLIP_PIXELS = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
CLASSES_BY_TAG = {"in1k": 1000, "in12k": 11821}
"""{last part of a tag of timm: number of classes}"""
EVA_ROTARY = RotaryConfig(base=10000.0, layout="interleaved", coordinates="grid", reference_grid=(16, 16))
"""The rotary positions of EVA-02, which timm's own models with rotary positions also have."""


@dataclasses.dataclass(frozen=True)
class CatalogueEntry:
    """Catalogue entry of one published file of weights.

    Args:
        name: `"<variant>@<weights>"`.
        variant: Name of the size, as in `published_sizes.PUBLISHED_VARIANTS`.
        url: `https://…`, or `hf://owner/repository`.
        format: Layout of the file: `"google"`, `"timm"`, `"huggingface"`, `"keras_hub"`, or `"torch"` for the original
            `.pth` files.
        family: Key of `FAMILIES`.
        classes: Number of outputs of the head, 0 without a head, or `None` if unknown before the file is read.
        label_space: `"imagenet1k"`, `"imagenet21k"` or `None`.
        image_size: Side in pixels of the square images that fit the file's position table.
        licence: SPDX identifier, or the name of the licence on the Hugging Face Hub.
        paper: arXiv identifier, or `None` if no paper describes the weights.
        top1: Published top-1 accuracy on the ImageNet validation set in %, or `None`.
        top1_protocol: Source and settings of the `top1` measurement.
        sha256: SHA-256 of the file, or its first digits, or `None` if unknown.
        gated: Whether the publisher sends the file only to users who have accepted the licence on the website.
        has_projection: Whether the head is the projection of an image-text model, and not a classifier.
        pixels: {argument of `keras_vit.Preprocessing`: value} for values that do not follow from the family.
        changes: {field of `ViTConfig`: value} for values that follow neither from the variant nor from the family.
    """

    name: str
    variant: str
    url: str
    format: str
    family: str
    classes: int | None
    label_space: str | None
    image_size: int
    licence: str
    paper: str | None
    top1: float | None = None
    top1_protocol: str | None = None
    sha256: str | None = None
    gated: bool = False
    has_projection: bool = False
    pixels: Mapping = dataclasses.field(default_factory=dict, hash=False)
    changes: Mapping = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self):
        for name in ("pixels", "changes"):
            object.__setattr__(self, name, types.MappingProxyType(dict(getattr(self, name))))


def build_entry(
    variant,
    weights,
    url,
    format,
    family,
    paper,
    classes=0,
    image_size=224,
    top1=(None, None),
    licence="Apache-2.0",
    gated=False,
    has_projection=False,
    pixels=types.MappingProxyType({}),
    **changes,
):
    """Builds the entry of `"<variant>@<weights>"`. `top1` is (accuracy, protocol)."""
    digits = re.search(r"-([0-9a-f]{8})\.pth$", url)  # PyTorch's file names end with the first digits of the SHA-256.
    return CatalogueEntry(
        name=f"{variant}@{weights}",
        variant=variant,
        url=url,
        format=format,
        family=family,
        classes=classes,
        label_space={1000: "imagenet1k", 21843: "imagenet21k"}.get(classes),
        image_size=image_size,
        licence=licence,
        paper=paper,
        top1=top1[0],
        top1_protocol=top1[1],
        sha256=digits and digits[1],
        gated=gated,
        has_projection=has_projection,
        pixels=pixels,
        changes=changes,
    )


def timm_entry(variant, weights, name, family, paper, image_size, crop=1.0, squash=False, top1=None, **facts):
    """Builds the catalogue entry of a file of weights that timm publishes.

    Args:
        name: timm's name of the weights: `"<architecture>.<tag>"`. The name of a repository that is not timm's own
            starts with its owner: `"<owner>/<architecture>.<tag>"`.
        crop: The crop ratio (`crop_pct`).
        squash: Whether images are resized to a square, not by their short side (`crop_mode="squash"`).
        top1: Accuracy in timm's table of results, `results/results-imagenet.csv`, or `None`.
        **facts: Further arguments of `build_entry`. `pixels` may contain arguments of `keras_vit.Preprocessing` other
            than `resize` and `crop`.
    """
    url = f"hf://{name}" if "/" in name else f"hf://timm/{name}"
    preparation = {"interpolation": "bicubic", **facts.pop("pixels", {})}
    shape = ", squashed" if squash else ""
    protocol = f"timm, {image_size} px, crop ratio {crop}{shape}, {preparation['interpolation']}"
    preparation |= resize_and_crop((image_size, image_size), crop, squash)
    facts = {"image_size": image_size, "top1": measured(top1, protocol), "pixels": preparation, **facts}
    return build_entry(variant, weights, url, "timm", family, paper, **facts)


def measured(figure, protocol):
    """(top1, top1_protocol) of an entry. Both are `None` if the accuracy is unknown."""
    return (figure, protocol if figure else None)


def timm_top1(figure, image_size):
    """(top1, top1_protocol) for an accuracy from timm's table of results."""
    crop = {224: 0.9, 240: 0.95, 384: 1.0}[image_size]
    return measured(figure, f"timm, {image_size} px, crop ratio {crop}, bicubic, exact GELU")


def split_variant(variant):
    """Splits the name of a variant: `"B/16"` becomes `("B", 16)`."""
    size, patch_size = variant.split("/")
    return size, int(patch_size)
