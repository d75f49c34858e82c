"""One file of the catalogue of published weights."""

import dataclasses
import re
import types
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class CatalogueEntry:
    """One published file of weights.

    Args:
        name: `"<variant>@<weights>"`.
        variant: The architecture, as in `keras_vit.VARIANTS`.
        url: `https://…`, or `hf://owner/repository`.
        format: How the file is laid out: `"google"`, `"timm"`, `"huggingface"`, `"keras_hub"`, or `"torch"` for the
            original `.pth` files.
        family: A key of `FAMILIES`.
        classes: Width of the classifier; 0 for none; `None` if only the file knows.
        label_space: `"imagenet1k"`, `"imagenet21k"` or `None`.
        image_size: Pixels of the square images that the file's positions are for.
        licence: SPDX identifier.
        paper: arXiv identifier.
        top1: Published top-1 accuracy on the ImageNet validation set in %, or `None`.
        top1_protocol: Who measured `top1`, and how.
        sha256: Of the file, or its first digits, or `None` if unknown.
        changes: Fields of `ViTConfig` in which the model differs from its variant, besides the family's numerics.
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
    """The entry of `"<variant>@<weights>"`; `top1` is a figure and who measured it how."""
    digits = re.search(r"-([0-9a-f]{8})\.pth$", url)  # PyTorch's convention for names of published files.
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
    """The two fields of an accuracy, both `None` without one."""
    return (figure, protocol if figure else None)


def timm_top1(figure, image_size):
    """The two fields of an accuracy in timm's table of results."""
    crop = {224: 0.9, 240: 0.95, 384: 1.0}[image_size]
    return measured(figure, f"timm, {image_size} px, crop ratio {crop}, bicubic, exact GELU")


def split_variant(variant):
    """`"B/16"` as `("B", 16)`."""
    size, patch_size = variant.split("/")
    return size, int(patch_size)
