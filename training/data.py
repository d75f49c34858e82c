"""The data sets: their classes, and where the images of each split come from."""

import contextlib
import dataclasses
import logging
import operator

import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader

from keras_vit.checks import is_one_line
from training.datasets import shapes
from training.datasets.derived_labels import DERIVED_LABELS, Label
from training.datasets.digits import Digits
from training.datasets.folder import read_folder
from training.datasets.mask_folder import read_mask_folder
from training.datasets.records import read_records
from training.datasets.tfds_splits import as_split, cut, find_shared, num_images, pieces, split_names
from training.errors import InputError
from training.segmentation.masks import renumbered
from training.sources import IndexedSource, StreamedSource

_DOWNLOAD_RETRIES = 3


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Names of the classes, and the source of each split: "train", "test" and, unless nothing is kept for it,
    "validation". `overlap` says which images are in two splits, and what to do; `None`: none is."""

    class_names: tuple[str, ...]
    splits: dict[str, IndexedSource | StreamedSource]
    overlap: str | None = None

    def __post_init__(self):
        for name in self.class_names:
            if not is_one_line(name):  # A class is a line of an export's labels.txt.
                raise InputError(f"The name of a class must be one line of text. Received: {name!r}. Rename the class.")

    def source(self, split):
        """The source of a split. Raises an InputError with the splits there are."""
        if split not in self.splits:
            raise InputError(f"The data set has no {split} split. It has: {', '.join(self.splits)}")
        return self.splits[split]


def load_dataset(data, disjoint=True):
    """The data set that `training.config.Data` describes.

    Args:
        data: `training.config.Data`
        disjoint: Whether an image must not be in two splits, as where one is learned from and another is measured.

    Returns:
        A `Dataset`.

    Raises:
        InputError: If it is not to be had, or an image is in two splits; the message says what to do.
    """
    if data.dataset == "shapes":
        raise InputError("data.dataset=shapes has masks and no labels. Choose the recipe shapes_vt_fpn.")
    load = {"folder": _load_folder, "records": _load_records}.get(data.dataset, _load_tfds)
    return _finished(load(data), data, disjoint)


def load_masks(data, disjoint=True):
    """As `load_dataset`, to segment; a label is an encoded mask."""
    load = {"folder": _load_mask_folder, "shapes": _load_shapes}.get(data.dataset)
    if load is None and data.mask is None:
        raise InputError(
            f"data.dataset={data.dataset} has no masks to learn. Choose shapes, folder, or a data set of TFDS and "
            f"which of its features is the mask: data.mask=segmentation_mask"
        )
    return _finished((load or _load_tfds)(data), data, disjoint)


def _finished(dataset, data, disjoint):
    """The data set, with some of its training images only if so many are asked for."""
    if disjoint and dataset.overlap:
        raise InputError(dataset.overlap)
    if data.train_images is None:
        return dataset
    source = dataset.source("train")
    if data.train_images > source.size:
        raise InputError(
            f"data.train_images={data.train_images}, but {data.dataset} has {source.size:,} images for training. "
            f"Choose fewer, or none for all of them."
        )
    drawn = source.draw(data.train_images, data.train_images_seed)
    return dataclasses.replace(dataset, splits=dataset.splits | {"train": drawn})


def _load_folder(data):
    folder = read_folder(data.directory, data.test_fraction, data.validation_fraction)
    _tell_skipped(folder)
    splits = {name: _files(images) for name, images in folder.splits.items() if images}
    if "test" not in splits:
        raise InputError(
            f"{data.directory} has no image for the test, and too few to hold any out: {splits['train'].size} in "
            f"{len(folder.class_names)} classes. Add images, at least two in a class, or raise data.test_fraction."
        )
    return Dataset(folder.class_names, splits, folder.overlap)


def _tell_skipped(folder):
    for path, problem in folder.skipped.items():
        print(f"Skipped {path}: {problem}")
    if folder.skipped:
        print(f"Skipped {len(folder.skipped)} in all.")


def _files(images):
    paths, labels = map(tf.constant, zip(*images, strict=True))
    return IndexedSource(
        len(images), lambda index: {"image": tf.io.read_file(paths[index]), "label": tf.cast(labels[index], tf.int64)}
    )


def _load_mask_folder(data):
    folder = read_mask_folder(data.directory, data.test_fraction, data.validation_fraction)
    _tell_skipped(folder)
    if not folder.splits["test"]:
        raise InputError(
            f"{data.directory} has too few images to hold any out for the test: {len(folder.splits['train'])}. Add "
            f"some, or raise data.test_fraction."
        )
    splits = {name: _file_pairs(pairs) for name, pairs in folder.splits.items() if pairs}
    return Dataset(folder.class_names, splits, folder.overlap)


def _file_pairs(pairs):
    images, masks = map(tf.constant, zip(*pairs, strict=True))
    return IndexedSource(
        len(pairs), lambda index: {"image": tf.io.read_file(images[index]), "label": tf.io.read_file(masks[index])}
    )


def _load_shapes(data):
    total = shapes.NUM_IMAGES["train"]
    kept = round(data.validation_fraction * total)
    ranges = {"train": (0, total - kept), "validation": (total - kept, total), "test": (0, shapes.NUM_IMAGES["test"])}
    splits = {name: _drawn_shapes(name, *numbers) for name, numbers in ranges.items() if numbers[0] < numbers[1]}
    return Dataset(shapes.CLASS_NAMES, splits)


def _drawn_shapes(split, first, end):
    own = "test" if split == "test" else "train"

    def read(index):
        drawn = tf.numpy_function(
            lambda number: shapes.encoded(own, int(number)), [index + first], [tf.string] * 2, stateful=False
        )
        image, mask = (tf.ensure_shape(content, []) for content in drawn)
        return {"image": image, "label": mask}

    return IndexedSource(end - first, read)


def _load_records(data):
    class_names, splits = read_records(data.directory, data.shuffle_buffer)
    return Dataset(class_names, splits)


def _load_tfds(data):
    builder = _prepared_builder(data)
    label = _label_or_mask(builder, data)
    names = split_names(builder, label, data)
    splits = {name: _tfds_source(builder, split, label, data.shuffle_buffer) for name, split in names.items()}
    return Dataset(label.class_names, splits, find_shared(builder, names))


def _tfds_source(builder, split, label, shuffle_buffer):
    decoders = {name: tfds.decode.SkipDecoding() for name in ("image", *label.encoded)}
    # Not all that an example has, such as the boxes of Oxford-IIIT Pets: nobody reads them.
    needed = tfds.decode.PartialDecoding({"image": True} | label.features, decoders=decoders)
    held = pieces(builder, split)
    size = num_images(held)
    repair = _IMAGE_REPAIRS.get(builder.name, tf.identity)

    def to_example(example):
        return {"image": repair(example["image"]), "label": label.read(example)}

    if builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
        with _without_warnings_of_itself():
            features = needed.extract_features(builder.info.features)
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        records = builder.as_data_source(split=as_split(held), deserialize_method=raw)

        def read(index):
            record = tf.numpy_function(lambda index: records[int(index)], [index], tf.string, stateful=False)
            with _without_warnings_of_itself():
                return to_example(features.deserialize_example(tf.ensure_shape(record, []), decoders=decoders))

        return IndexedSource(len(records), read)

    def stream(ranges, seed):
        share = as_split([piece for first, end in ranges for piece in cut(held, first, end)])
        config = tfds.ReadConfig(shuffle_seed=seed, skip_prefetch=True, try_autocache=False)
        shuffle = seed is not None
        with _without_warnings_of_itself():
            examples = builder.as_dataset(split=share, shuffle_files=shuffle, decoders=needed, read_config=config)
        return examples.map(to_example)

    return StreamedSource(size, stream, shuffle_buffer)


@contextlib.contextmanager
def _without_warnings_of_itself():
    """TFDS warns of its own use of an attribute that it has deprecated, whenever some features of several are read."""
    logger = logging.getLogger("absl")
    logger.addFilter(_is_not_of_itself)
    try:
        yield
    finally:
        logger.removeFilter(_is_not_of_itself)


def _is_not_of_itself(record):
    return "`FeatureConnector.dtype` is deprecated" not in record.getMessage()


def _black_and_white(image):
    """An encoded image of the pixels 0 and 1 as one of 0 and 255."""
    return tf.io.encode_png(255 * tf.cast(tf.io.decode_png(image, channels=1) > 0, tf.uint8))


# On the images of dSprites, as TFDS has them, there would be nothing to see. task_adaptation does the same.
_IMAGE_REPAIRS = {"dsprites": _black_and_white}


def _prepared_builder(data):
    if data.dataset == "digits":
        tfds.disable_progress_bar()  # It takes a second.
        builder = Digits(data_dir=data.tfds_directory)
        remedy = "Name a folder that can be written to with data.tfds_directory."
    else:
        builder = _find_builder(data)
        _label_or_mask(builder, data)  # A mistake is told before a download of hours, and not after it.
        remedy = _how_to_prepare(builder, data.dataset)
    # TFDS has no option for it, and its ten retries take three and a half minutes without a network.
    downloader.MAX_RETRIES = _DOWNLOAD_RETRIES
    try:
        # Nothing prepared is looked for in a bucket: that takes minutes to fail without a network.
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        builder.download_and_prepare(download_config=config)
    except (OSError, AssertionError, tf.errors.OpError, tfds.download.DownloadError) as error:
        problem = str(error).rstrip(".")
        raise InputError(f"{data.dataset} cannot be prepared in {builder.data_dir}: {problem}. {remedy}") from error
    return builder


def _how_to_prepare(builder, name):
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        return (
            "TFDS may not download these files: put them there yourself and start again, or name a folder in which "
            "TFDS has prepared them already with data.tfds_directory."
        )
    return (
        f'On a machine with a network run: python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder('{name}').download_and_prepare()\"; copy its ~/tensorflow_datasets here, and name the copy with "
        f"data.tfds_directory."
    )


def _find_builder(data):
    try:
        return tfds.builder(data.dataset, data_dir=data.tfds_directory)
    except (ValueError, tfds.core.registered.DatasetNotFoundError):
        raise InputError(
            f"data.dataset={data.dataset} is neither digits, folder nor records nor the name of a TFDS data set. "
            f"Names: https://www.tensorflow.org/datasets/catalog"
        ) from None


def _label_or_mask(builder, data):
    return find_label(builder, data.label) if data.mask is None else _find_mask(builder, data)


def _find_mask(builder, data):
    """What a data set of TFDS is segmented by: a `training.datasets.derived_labels.Label`, which reads a mask."""
    features = builder.info.features
    parts = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    found = [
        name
        for name, feature in parts.items()
        if isinstance(feature, tfds.features.Image) and feature.shape[-1] == 1 and name != "image"
    ]
    if "image" not in parts or data.mask not in found:
        raise InputError(
            f"{builder.name} has no mask {data.mask!r}. Its features that may be masks: {', '.join(found) or 'none'}."
        )
    if data.mask_classes is None:
        raise InputError(
            f"TFDS does not say what the values of {data.mask} mean. Name them: data.mask_classes=pet,ground,border; "
            f"and data.mask_offset=1 if the first of them has the value 1."
        )

    def read(example):
        arguments = [example[data.mask], data.mask_offset, len(data.mask_classes)]
        return tf.ensure_shape(tf.numpy_function(renumbered, arguments, tf.string, stateful=False), [])

    return Label(tuple(data.mask_classes), {data.mask: True}, read, encoded=(data.mask,))


def find_label(builder, name):
    """What a data set of TFDS is classified by.

    Args:
        builder: The data set's `tfds.core.DatasetBuilder`; it need not be prepared.
        name: Of the label; `None`: `label`, or else `real_label`.

    Returns:
        A `training.datasets.derived_labels.Label`.

    Raises:
        InputError: If there is no such label, or nothing to classify; the message says what there is.
    """
    features = builder.info.features
    parts = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    labels = _stored_labels(parts) | DERIVED_LABELS.get(builder.name, {})
    if not isinstance(parts.get("image"), tfds.features.Image) or not labels:
        raise InputError(
            f"{builder.name} is not a data set to classify images with: it needs the feature image and another that "
            f"is a class. It has {features}."
        )
    found = name or ("real_label" if "label" not in labels and "real_label" in labels else "label")
    if found not in labels:
        raise InputError(f"{builder.name} has no label {found!r}. Set data.label to one of: {', '.join(labels)}.")
    return labels[found]


def _stored_labels(parts):
    # Re-assessed labels (arXiv 2006.07159): every right class of an image, or none.
    several = parts.get("real_label")
    classes = parts | ({"real_label": several.feature} if isinstance(several, tfds.features.Sequence) else {})
    return {
        # Some class names are in the files that are downloaded.
        name: Label(tuple(feature.names or ()), {name: True}, operator.itemgetter(name))
        for name, feature in classes.items()
        if isinstance(feature, tfds.features.ClassLabel)
    }
