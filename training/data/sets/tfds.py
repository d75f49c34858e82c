"""Loads the data sets of TFDS, and the digits, which are defined as a data set of TFDS."""

import contextlib
import logging
import operator

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader

from keras_vit.checks import did_you_mean
from training.data.dataset import Dataset
from training.data.masks import renumbered
from training.data.sets.derived_labels import DERIVED_LABELS, Label
from training.data.sets.digits import Digits
from training.data.sets.tfds_splits import (
    as_split,
    list_contents,
    num_images,
    overlap_message,
    pieces,
    refuse_tests_on_seen_pieces,
    split_names,
)
from training.data.sources import IndexedSource, StreamedSource, cut
from training.errors import InputError
from training.recipe.images import BUILT_IN

_DOWNLOAD_RETRIES = 3


def load_tfds(annotation, data, record):
    """Loads a data set of TFDS, or the digits, as a `training.data.dataset.Dataset`. Downloads it if needed.

    Args:
        annotation: `"label"`, `"mask"` or `"depth"`.
        data: `training.recipe.config.Data`
        record: `training.data.contents.Record` of a run, or `None`.

    Raises:
        InputError: If the data set is unavailable or has no such annotation, or test images are training images of the
            run.
    """
    builder = _prepared_builder(annotation, data)
    label = _find_annotation(builder, annotation, data)
    names = split_names(builder, label, data)
    if record is not None:
        refuse_tests_on_seen_pieces(builder, names, record)
    splits = {
        name: _tfds_source(builder, split, label, annotation, data.shuffle_buffer) for name, split in names.items()
    }
    contents = list_contents(builder, names)
    units = ("metres",) if annotation == "depth" else None
    return Dataset(label.class_names, splits, lambda: overlap_message(builder, names), lambda: contents, units=units)


def _tfds_source(builder, split, label, annotation, shuffle_buffer):
    decoders = {name: tfds.decode.SkipDecoding() for name in ("image", *label.encoded)}
    # Features that are not needed, such as the boxes of Oxford-IIIT Pets, are not decoded.
    needed = tfds.decode.PartialDecoding({"image": True} | label.features, decoders=decoders)
    split_pieces = pieces(builder, split)
    repair = _black_and_white if builder.name == "dsprites" else tf.identity

    def to_example(example):
        return {"image": repair(example["image"]), annotation: label.read(example)}

    if builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
        with _without_deprecation_warning():
            features = needed.extract_features(builder.info.features)
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        records = builder.as_data_source(split=as_split(split_pieces), deserialize_method=raw)

        def read(index):
            record = tf.numpy_function(lambda index: records[int(index)], [index], tf.string, stateful=False)
            with _without_deprecation_warning():
                return to_example(features.deserialize_example(tf.ensure_shape(record, []), decoders=decoders))

        return IndexedSource(len(records), read)

    def stream(ranges, seed):
        share = as_split([piece for first, end in ranges for piece in cut(split_pieces, first, end)])
        config = tfds.ReadConfig(shuffle_seed=seed, skip_prefetch=True, try_autocache=False)
        shuffle = seed is not None
        with _without_deprecation_warning():
            examples = builder.as_dataset(split=share, shuffle_files=shuffle, decoders=needed, read_config=config)
        return examples.map(to_example)

    return StreamedSource(num_images(split_pieces), stream, shuffle_buffer)


@contextlib.contextmanager
def _without_deprecation_warning():
    """Suppresses a deprecation warning that TFDS itself causes if only some of the features are read."""
    logger = logging.getLogger("absl")
    logger.addFilter(_is_other_warning)
    try:
        yield
    finally:
        logger.removeFilter(_is_other_warning)


def _is_other_warning(record):
    return "`FeatureConnector.dtype` is deprecated" not in record.getMessage()


def _black_and_white(image):
    """Converts an encoded image of dSprites, which TFDS stores with the values 0 and 1, to the values 0 and 255."""
    return tf.io.encode_png(255 * tf.cast(tf.io.decode_png(image, channels=1) > 0, tf.uint8))  # As in task_adaptation.


def _prepared_builder(annotation, data):
    if data.dataset == "digits":
        tfds.disable_progress_bar()  # Preparing the digits takes only a second.
        builder = Digits(data_dir=data.tfds_directory)
        remedy = "Set data.tfds_directory to a folder that can be written to."
    else:
        try:
            builder = tfds.builder(data.dataset, data_dir=data.tfds_directory)
        except (ValueError, tfds.core.registered.DatasetNotFoundError):
            raise InputError(
                f"data.dataset={data.dataset} is neither one of {', '.join(BUILT_IN)} nor the name of a TFDS data set."
                f"{did_you_mean(data.dataset, BUILT_IN)} Names: https://www.tensorflow.org/datasets/catalog"
            ) from None
        _find_annotation(builder, annotation, data)  # Refuses a wrong name before the download, which may take hours.
        remedy = (
            "TFDS cannot download these files. Put them into that folder yourself and start again, or set "
            "data.tfds_directory to a folder in which TFDS has already prepared them."
            if builder.MANUAL_DOWNLOAD_INSTRUCTIONS
            else f'On a machine with a network run: python -c "import tensorflow_datasets as tfds; '
            f"tfds.builder('{data.dataset}').download_and_prepare()\". Copy its ~/tensorflow_datasets to this machine, "
            f"and set data.tfds_directory to the copy."
        )
    # TFDS has no option for the number of retries. Its ten retries take three and a half minutes without a network.
    downloader.MAX_RETRIES = _DOWNLOAD_RETRIES
    try:
        # TFDS must not look for prepared data in a bucket. Without a network, this search fails only after minutes.
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        builder.download_and_prepare(download_config=config)
    except (OSError, AssertionError, tf.errors.OpError, tfds.download.DownloadError) as error:
        problem = str(error).rstrip(".")
        raise InputError(f"{data.dataset} cannot be prepared in {builder.data_dir}: {problem}. {remedy}") from error
    return builder


def _features(builder):
    """{name: feature} of a data set of TFDS. Empty if its examples are not dictionaries."""
    features = builder.info.features
    return dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}


def _find_annotation(builder, annotation, data):
    """A `training.data.sets.derived_labels.Label` that reads the labels, encoded masks or depth of a data set."""
    if annotation == "label":
        return find_label(builder, data.label)
    parts = _features(builder)
    return _find_depth(builder, parts, data) if annotation == "depth" else _find_mask(builder, parts, data)


def _find_depth(builder, parts, data):
    depth_names = [
        name
        for name, feature in parts.items()
        if isinstance(feature, (tfds.features.Image, tfds.features.Tensor))
        and (len(feature.shape) == 2 or feature.shape[2:] == (1,))
        and feature.np_dtype != np.uint8
    ]
    if "image" not in parts or data.depth not in depth_names:
        raise InputError(
            f"{builder.name} has no depth {data.depth!r}. Features that could be depth: "
            f"{', '.join(depth_names) or 'none'}."
        )
    scale = data.depth_scale if np.issubdtype(parts[data.depth].np_dtype, np.integer) else 1.0

    def read(example):
        depth = scale * tf.cast(example[data.depth], tf.float32)
        depth = tf.where(tf.math.is_finite(depth) & (depth > 0), depth, 0.0)
        return depth if depth.shape.rank == 3 else depth[..., None]

    return Label(("depth",), {data.depth: True}, read)


def _find_mask(builder, parts, data):
    mask_names = [
        name
        for name, feature in parts.items()
        if isinstance(feature, tfds.features.Image) and feature.shape[-1] == 1 and name != "image"
    ]
    if "image" not in parts or data.mask not in mask_names:
        raise InputError(
            f"{builder.name} has no mask {data.mask!r}. Features that could be masks: "
            f"{', '.join(mask_names) or 'none'}."
        )
    if data.mask_classes is None:
        raise InputError(
            f"TFDS has no names for the values of {data.mask}. Give the names of the classes, for example "
            f"data.mask_classes=pet,ground,border. Also set data.mask_offset=1 if the first class has the value 1."
        )

    def read(example):
        arguments = [example[data.mask], data.mask_offset, len(data.mask_classes)]
        return tf.ensure_shape(tf.numpy_function(renumbered, arguments, tf.string, stateful=False), [])

    return Label(tuple(data.mask_classes), {data.mask: True}, read, encoded=(data.mask,))


def find_label(builder, name):
    """Finds the label by which the images of a data set of TFDS are classified.

    Args:
        builder: `tfds.core.DatasetBuilder` of the data set, which need not be prepared.
        name: Name of the label. `None`: `label`, or `real_label` if the data set has no `label`.

    Returns:
        A `training.data.sets.derived_labels.Label`.

    Raises:
        InputError: If the data set has no such label, or no images. The message lists its labels or features.
    """
    parts = _features(builder)
    # ImageNet's re-assessed label of an image (arXiv 2006.07159) is a list of all correct classes, which may be empty.
    several = parts.get("real_label")
    classes = parts | ({"real_label": several.feature} if isinstance(several, tfds.features.Sequence) else {})
    labels = {
        # A feature has no class names if TFDS has not yet downloaded the files with these names.
        name: Label(tuple(feature.names or ()), {name: True}, operator.itemgetter(name))
        for name, feature in classes.items()
        if isinstance(feature, tfds.features.ClassLabel)
    } | DERIVED_LABELS.get(builder.name, {})
    if not isinstance(parts.get("image"), tfds.features.Image) or not labels:
        raise InputError(
            f"{builder.name} cannot be used for image classification. It needs a feature named 'image' "
            f"and a feature with classes. It has {builder.info.features}."
        )
    label_name = name or ("real_label" if "label" not in labels and "real_label" in labels else "label")
    if label_name not in labels:
        raise InputError(f"{builder.name} has no label {label_name!r}. Set data.label to one of: {', '.join(labels)}.")
    return labels[label_name]
