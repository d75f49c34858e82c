"""`CatalogueEntry`, and the entries of the table `entries.tsv`.

The rows come from the documents of google-research/vision_transformer and big_vision, from the repositories of DeiT,
Depth Anything, DINO, DINOv2, DINOv3, EoMT, EVA, I-JEPA, MAE and MoCo v3, from the cards of TIPSv2, and from timm 1.0.31
with its table of results. The ending of a name shows a copy in another layout: `-huggingface` (transformers),
`-original` (the owners' `.pth` file), `-bigvision`, and `-qkvb` (timm's files of DINOv3 with biases of queries and
values, which are zero). Meta sends the addresses of its own files of DINOv3 to users who have accepted the licence, so
these files have no rows.
"""

import dataclasses
import re
import types
from collections.abc import Mapping

from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.weights.catalogue.families import FAMILIES, preprocessing_of
from keras_vit.weights.catalogue.sizes import PUBLISHED_VARIANTS
from keras_vit.weights.catalogue.tables import read_table

COPY_ENDINGS = re.compile(r"-(original|huggingface|bigvision|qkvb)$")
"""Endings of the names of copies in another layout. Without its ending, such a name is that of the preferred copy."""


@dataclasses.dataclass(frozen=True)
class CatalogueEntry:
    """Catalogue entry of one published file of weights.

    Args:
        name: `"<variant>@<weights>"`. The variant is the name of a size in `sizes.PUBLISHED_VARIANTS`.
        family: Key of `FAMILIES`.
        paper: arXiv identifier, or `None` if no paper describes the weights.
        licence: SPDX identifier, or the name of the licence on the Hugging Face Hub.
        format: Layout of the file: `"google"`, `"timm"`, `"huggingface"`, `"keras_hub"`, `"depth_anything"`, or
            `"torch"` for the original `.pth` files.
        url: `https://…`, or `hf://owner/repository`.
        classes: Number of outputs of the head, 0 without a head, or `None` if unknown before the file is read.
        image_size: Side in pixels of the square images that fit the file's position table.
        top1: Published top-1 accuracy on the ImageNet validation set in %, or `None`.
        top1_protocol: Source and settings of the `top1` measurement.
        gated: Whether the publisher sends the file only to users who have accepted the licence on the website.
        has_projection: Whether the head is the projection of an image-text model, and not a classifier.
        preprocessing: {argument of `keras_vit.Preprocessing`: value} for values that do not follow from the family.
        changes: {field of `ViTConfig`: value} for values that follow neither from the variant nor from the family.
        output: What the model returns for each pixel, a kind of `keras_vit.Output`, or `None` for other models.
        hints: {field of `Hints`: value} for what the address does not show, such as the encoder, or one of several
            heads in a file.
    """

    name: str
    family: str
    paper: str | None
    licence: str
    format: str
    url: str
    classes: int | None
    image_size: int
    top1: float | None = None
    top1_protocol: str | None = None
    gated: bool = False
    has_projection: bool = False
    preprocessing: Mapping = dataclasses.field(default_factory=dict, hash=False)
    changes: Mapping = dataclasses.field(default_factory=dict, hash=False)
    output: str | None = None
    hints: Mapping = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self):
        preprocessing = {**preprocessing_of(self.family, self.image_size), **self.preprocessing}
        if self.output is not None:  # The whole image is used, so there is no crop.
            preprocessing |= {"resize": (self.image_size, self.image_size), "crop": None}
        object.__setattr__(self, "preprocessing", types.MappingProxyType(preprocessing))
        object.__setattr__(self, "changes", types.MappingProxyType(dict(self.changes)))

    @property
    def variant(self):
        """Name of the size."""
        return self.name.partition("@")[0]

    @property
    def label_space(self):
        """`"imagenet1k"`, `"imagenet21k"`, or `None` for other classes."""
        return {1000: "imagenet1k", 21843: "imagenet21k"}.get(self.classes or 0)

    @property
    def sha256(self):
        """First digits of the file's SHA-256, with which PyTorch's file names end, or `None` if unknown."""
        digits = re.search(r"-([0-9a-f]{8})\.pth$", self.url)
        return digits and digits[1]

    @property
    def config(self):
        """The `ViTConfig` of the model that the file contains, or of its encoder."""
        return PUBLISHED_VARIANTS[self.variant].replace(**FAMILIES[self.family].config_fields | dict(self.changes))


_JSON = ("classes", "image_size", "top1", "gated", "has_projection", "preprocessing", "changes", "hints")


def _read_entries():
    for row in read_table("entries.tsv", _JSON):
        changes = ViTConfig.read_fields(row.get("changes", {}))
        yield CatalogueEntry(**{"paper": None, "classes": None, **row, "changes": changes})


ENTRIES = types.MappingProxyType({entry.name: entry for entry in _read_entries()})
"""The catalogue: {name: `CatalogueEntry`}"""

_AUGREG_VARIANTS = {
    variant.replace("/", "_").replace("+", "_"): variant
    for variant in ("Ti/16", "S/32", "S/16", "B/32", "B/16", "B/8", "L/16", "R+Ti/16", "R26+S/32", "R50+L/32")
}
AUGREG_STEM = re.compile(
    rf"(?P<variant>{'|'.join(_AUGREG_VARIANTS)})-(?P<upstream>i1k|i21k|i21k_30)-(300|30)ep-lr_0\.001"
    r"-aug_(none|light0|light1|medium1|medium2|strong1|strong2)-wd_(0\.03|0\.1)-do_(0\.0|0\.1)-sd_(0\.0|0\.1)"
    r"(--(?P<transfer>[a-z0-9_]+)-steps_\d+k-lr_(0\.001|0\.003|0\.01|0\.03)-res_(?P<size>224|384))?"
)
"""Names of the 50,000 AugReg files (arXiv 2106.10270) without `.npz`"""
_AUGREG_CLASSES = {"imagenet2012": 1000, "cifar100": 100, "kitti": 4, "oxford_iiit_pet": 37, "resisc45": 45}


def augreg_entry(stem):
    """Builds the entry of any AugReg file from its name without `.npz`."""
    parts = AUGREG_STEM.fullmatch(stem).groupdict()  # type: ignore[union-attr]
    if parts["transfer"]:
        classes = _AUGREG_CLASSES.get(parts["transfer"])
    else:
        classes = 1000 if parts["upstream"] == "i1k" else 21843
    return CatalogueEntry(
        name=f"{_AUGREG_VARIANTS[parts['variant']]}@{stem}",
        family="google",
        paper="2106.10270",
        licence="Apache-2.0",
        format="google",
        url=f"https://storage.googleapis.com/vit_models/augreg/{stem}.npz",
        classes=classes,
        image_size=int(parts["size"] or 224),
    )
