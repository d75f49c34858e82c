"""`CatalogueEntry`, and functions that build entries."""

import dataclasses
import re
import types
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class CatalogueEntry:
    """Catalogue entry of one published file of weights.

    Args:
        name: `"<variant>@<weights>"`.
        variant: Name of the architecture, as in `keras_vit.VARIANTS`.
        url: `https://…`, or `hf://owner/repository`.
        format: Layout of the file: `"google"`, `"timm"`, `"huggingface"`, `"keras_hub"`, or `"torch"` for the original
            `.pth` files.
        family: Key of `FAMILIES`.
        classes: Number of classes, 0 without a classifier, or `None` if unknown before the file is read.
        label_space: `"imagenet1k"`, `"imagenet21k"` or `None`.
        image_size: Side in pixels of the square images that fit the file's position table.
        licence: SPDX identifier.
        paper: arXiv identifier.
        top1: Published top-1 accuracy on the ImageNet validation set in %, or `None`.
        top1_protocol: Source and settings of the `top1` measurement.
        sha256: SHA-256 of the file, or its first digits, or `None` if unknown.
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
    paper: str
    top1: float | None = None
    top1_protocol: str | None = None
    sha256: str | None = None
    changes: Mapping = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self):
        object.__setattr__(self, "changes", types.MappingProxyType(dict(self.changes)))


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
        changes=changes,
    )


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
