"""The sections of a recipe about images: where they come from, and how they are changed in training."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from training.recipe.consistency import refuse_unused
from training.recipe.section import Fraction, section


class BuiltIn(NamedTuple):
    """Properties of a data set that determine which fields of a recipe are used.

    Args:
        has_directory: Whether its files are in `data.directory`.
        is_split: Whether its files are split by `test_fraction` and `validation_fraction`, unless they have splits.
        is_tfds: Whether TFDS prepares it and defines its splits.
        is_stream: Whether it can be read as a stream, through a shuffle buffer.
    """

    has_directory: bool = False
    is_split: bool = False
    is_tfds: bool = False
    is_stream: bool = False


BUILT_IN = {
    "archives": BuiltIn(has_directory=True, is_split=True),
    "coco": BuiltIn(has_directory=True, is_split=True),
    "digit_sets": BuiltIn(),
    "digit_sums": BuiltIn(),
    "digits": BuiltIn(is_tfds=True, is_stream=True),
    "drawn_pairs": BuiltIn(),
    "folder": BuiltIn(has_directory=True, is_split=True),
    "records": BuiltIn(has_directory=True, is_stream=True),
    "scenes": BuiltIn(),
    "shapes": BuiltIn(),
    "table": BuiltIn(has_directory=True, is_split=True),
}
"""{value of `data.dataset`: properties}"""
IN_DIRECTORY = [name for name, properties in BUILT_IN.items() if properties.has_directory]
_SPLIT_HERE = [name for name, properties in BUILT_IN.items() if properties.is_split]


@section
class Data:
    """Where the images come from."""

    dataset: str = Field(
        description="digits, folder, table, archives, records, or the name of a TFDS data set of images and labels; "
        "for segmentation: shapes, scenes, folder, coco, records, or a TFDS data set of images and masks; for objects: "
        "scenes or coco; for depth: scenes, folder, or a TFDS data set of images and depth; for multilabel: table, "
        "archives, records or digit_sets; for regression: table, archives, records or digit_sums; for contrastive: "
        "table, archives, coco or drawn_pairs"
    )
    label: str | None = Field(
        None,
        description="for TFDS: name of the label, which is a feature (such as label_azimuth of smallnorb) or is "
        "derived from features (such as count of clevr); none: label, or real_label if there is no label",
    )
    directory: str | None = Field(
        None,
        description="for folder: directory with one folder per class, or with folders images and masks or depth; for "
        "coco: directory of images and annotations; for records: directory of the shards; for table: path of a .csv, "
        ".tsv, .jsonl or .parquet file with a column path; for archives: .tar file of WebDataset or .tfrecord file, or "
        "a folder of them",
    )
    annotations: str = Field(
        "annotations/instances_*.json",
        description="for coco: pattern of the paths of the JSON files in directory, such as "
        "annotations/panoptic_*.json or, for contrastive, annotations/captions_*.json; train, val and test in these "
        "paths define the splits",
    )
    mask: str | None = Field(
        None, description="for segmentation with TFDS: mask feature, such as segmentation_mask of oxford_iiit_pet"
    )
    mask_classes: tuple[str, ...] | None = Field(
        None, description="with mask: class names, in the order of their values in the mask; other values are void"
    )
    mask_offset: NonNegativeInt = Field(0, description="with mask: value of the first class in the mask")
    depth: str | None = Field(None, description="for depth with TFDS: depth feature, such as depth of nyu_depth_v2")
    depth_scale: PositiveFloat = Field(
        0.001, description="for depth stored as integers, such as PNG files of 16 bits: metres of the value 1"
    )
    tfds_directory: str | None = Field(None, description="directory of the TFDS data; none: the default of TFDS")
    train_split: str | None = Field(None, description="for TFDS: training split, such as train[:99%]; none: train")
    validation_split: str | None = Field(
        None,
        description="for TFDS: validation split; none: the data set's own or, if it has none, validation_fraction of "
        "the training images (no validation if train_split is set)",
    )
    test_split: str | None = Field(None, description="for TFDS: test split; none: test, or else validation")
    validation_fraction: Fraction = Field(0.1, description="fraction of the training images held out for validation")
    classes: tuple[str, ...] | None = Field(
        None,
        description="names of the classes whose images are used, or of the labels or columns of values that are used; "
        "none: all",
    )
    train_images: PositiveInt | None = Field(None, description="number of training images, chosen at random; none: all")
    train_images_seed: NonNegativeInt = Field(0, description="with train_images: seed of the random choice")
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="for folder, coco, table and archives: fraction of each class held out for testing"
    )
    cache: bool = Field(
        True, description="keep the images in memory, as resized pixels or, with crop=inception, as encoded files"
    )
    views: PositiveInt = Field(
        1, description="with a frozen encoder: number of augmented copies of a training image, whose features are kept"
    )
    cache_limit: PositiveFloat = Field(
        20.0, description="with a frozen encoder: maximum size of all kept features on disk, in gigabytes"
    )
    max_failures: NonNegativeInt = Field(
        0,
        description="for folder, coco, table and archives: training images that may be lost in the run; others replace "
        "them; for coco, table and archives also images whose annotation cannot be used, which are skipped",
    )
    shuffle_buffer: PositiveInt = Field(
        10_000, description="with cache=false, for records and TFDS's TFRecord files: number of images to shuffle"
    )

    def __post_init__(self):
        if self.directory is not None and self.dataset not in IN_DIRECTORY:
            raise ValueError(
                f"data.directory is only used for data.dataset={', '.join(IN_DIRECTORY)}. Received: "
                f"dataset={self.dataset!r}"
            )
        built_in = BUILT_IN.get(self.dataset)
        if self.dataset not in _SPLIT_HERE:
            refuse_unused(self, ["test_fraction", "max_failures"], f"for data.dataset={', '.join(_SPLIT_HERE)}")
        if built_in and not built_in.is_tfds:
            names = ["tfds_directory", "train_split", "validation_split", "test_split"]
            refuse_unused(self, names, "for data sets of TFDS")
        if built_in:
            refuse_unused(self, ["label", "mask", "depth"], "for data sets of TFDS other than digits")
        if self.dataset != "coco":
            refuse_unused(self, ["annotations"], "for data.dataset=coco")
        if self.mask is None:
            refuse_unused(self, ["mask_classes", "mask_offset"], "with data.mask")
        if self.depth is None and self.dataset != "folder":
            refuse_unused(self, ["depth_scale"], "for data.dataset=folder and with data.depth")
        if self.cache or (built_in and not built_in.is_stream):
            refuse_unused(self, ["shuffle_buffer"], "with data.cache=false, for records and data sets of TFDS")
        if self.train_images is None:
            refuse_unused(self, ["train_images_seed"], "with data.train_images")
        if (self.train_split or self.validation_split) and self.validation_fraction:
            raise ValueError("data.validation_fraction must be 0 if data.train_split or data.validation_split is set")


@section
class Augment:
    """Random changes of training images, in the order of the fields. A maximum m means changes from -m to m."""

    library: Literal["tensorflow", "keras_cv"] = Field(
        "tensorflow",
        description="library of RandAugment, Mixup and CutMix; runs are exactly repeatable only with tensorflow",
    )
    crop: Literal["none", "random", "inception"] = Field(
        "none", description="none: the whole image; random: a window of input_shape; inception: a window of random size"
    )
    crop_from: PositiveInt | None = Field(
        None, description="for crop=random: images are first resized to a square with this side in pixels"
    )
    crop_area: tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]] = Field(
        (0.05, 1.0), description="for crop=inception: smallest and largest fraction of the image's area"
    )
    scale_range: tuple[PositiveFloat, PositiveFloat] = Field(
        (1.0, 1.0),
        description="for crop=none: smallest and largest random scale of the image, of which a window is cut out, or "
        "which is padded; 1: the model's input size",
    )
    flip: bool = Field(False, description="flip each image left to right with probability 0.5")
    translation: Fraction = Field(0.0, description="maximum shift as a fraction of the side; alone, in whole pixels")
    rotation: Annotated[float, Field(ge=0, le=180)] = Field(0.0, description="maximum rotation, in degrees")
    scale: Fraction = Field(0.0, description="maximum change of the size, as a fraction")
    fill: Literal["reflect", "black"] = Field("reflect", description="what fills the area outside the moved image")
    color_jitter: Fraction = Field(
        0.0, description="maximum change of brightness, contrast and saturation, as a fraction"
    )
    randaugment_ops: NonNegativeInt = Field(0, description="number of random operations per image (arXiv 1909.13719)")
    randaugment_magnitude: Annotated[float, Field(ge=0, le=30)] = Field(
        10, description="strength of the RandAugment operations, from 0 to 30"
    )
    autoaugment: bool = Field(False, description="AutoAugment, policy v0 for ImageNet (arXiv 1805.09501)")
    erasing: Fraction = Field(0.0, description="probability that a random rectangle is erased (arXiv 1708.04896)")
    mixup: NonNegativeFloat = Field(0.0, description="a of Mixup's Beta(a, a) (arXiv 1710.09412); 0: no Mixup")
    cutmix: NonNegativeFloat = Field(0.0, description="a of CutMix's Beta(a, a) (arXiv 1905.04899); 0: no CutMix")

    def __post_init__(self):
        if (self.crop == "random") != (self.crop_from is not None):
            raise ValueError("augment.crop_from must be set for crop=random, and none for all other crops")
        if self.crop != "inception":
            refuse_unused(self, ["crop_area"], "for augment.crop=inception")
        if self.crop != "none":
            refuse_unused(self, ["scale_range"], "for augment.crop=none")
        for name in ("crop_area", "scale_range"):
            smallest, largest = getattr(self, name)
            if smallest > largest:
                raise ValueError(f"augment.{name} must be smallest,largest. Received: {smallest},{largest}")
        if not (self.translation or self.rotation or self.scale):
            refuse_unused(self, ["fill"], "with translation, rotation or scale")
        if not self.randaugment_ops:
            refuse_unused(self, ["randaugment_magnitude"], "with augment.randaugment_ops")
