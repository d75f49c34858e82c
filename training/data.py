"""From encoded images to batches. H W C image, B batch."""

import dataclasses

import tensorflow as tf
import tensorflow_datasets as tfds

from training.augment import augment
from training.datasets.digits import Digits
from training.datasets.folder import read_folder
from training.errors import InputError


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Encoded images with labels: elements `{"image": bytes, "label": class index}`.

    `splits` has "train", "test" and, unless nothing is kept for it, "validation"; `sizes` counts their images.
    """

    class_names: tuple[str, ...]
    splits: dict[str, tf.data.Dataset]
    sizes: dict[str, int]


def load_dataset(data):
    """The data set that `training.config.Data` describes.

    Returns:
        A `Dataset`.

    Raises:
        InputError: If it is not to be had; the message says what to do.
    """
    return _load_folder(data) if data.dataset == "folder" else _load_tfds(data)


def batches(dataset, split, decode, recipe, training=False):
    """Batches of one split.

    Args:
        dataset: `Dataset`
        split: Name of the split.
        decode: Function from encoded bytes to uint8 (H, W, C), as `keras_vit.export.image_decoder` makes it.
        recipe: `training.config.Recipe`
        training: Whether to shuffle and augment. The order and the changes of each epoch follow from the seed.

    Returns:
        `tf.data.Dataset` of images (B, H, W, C), pixels from 0 to 255, and one-hot labels (B, classes).
    """
    num_classes = len(dataset.class_names)

    def read(example):
        return decode(example["image"]), tf.one_hot(example["label"], num_classes)

    examples = dataset.splits[split].map(read, tf.data.AUTOTUNE)
    if recipe.data.cache:
        examples = examples.cache()
    if training:
        size = min(recipe.data.shuffle_buffer, dataset.sizes[split])
        examples = examples.shuffle(size, seed=recipe.seed, reshuffle_each_iteration=True)
        seeds = tf.data.Dataset.random(seed=recipe.seed, rerandomize_each_iteration=True).batch(2)
        examples = tf.data.Dataset.zip(examples, seeds).map(
            lambda example, seed: (augment(example[0], seed, recipe.augment), example[1]), tf.data.AUTOTUNE
        )
    return examples.batch(recipe.fit.batch_size).prefetch(tf.data.AUTOTUNE)


def _load_folder(data):
    folder = read_folder(data.directory, data.test_fraction, data.validation_fraction)
    for path, problem in folder.skipped.items():
        print(f"Skipped {path}: {problem}")
    if folder.skipped:
        print(f"Skipped {len(folder.skipped)} in all.")
    splits = {name: _files(images) for name, images in folder.splits.items() if images}
    sizes = {name: len(images) for name, images in folder.splits.items() if images}
    if "test" not in splits:
        raise InputError(
            f"{data.directory} has no image for the test, and too few to hold any out: {sizes['train']} in "
            f"{len(folder.class_names)} classes. Add images, at least two in a class, or raise data.test_fraction."
        )
    return Dataset(folder.class_names, splits, sizes)


def _files(images):
    paths, labels = zip(*images, strict=True)
    return tf.data.Dataset.from_tensor_slices((list(paths), list(labels))).map(
        lambda path, label: {"image": tf.io.read_file(path), "label": label}, tf.data.AUTOTUNE
    )


def _load_tfds(data):
    builder = _prepared_builder(data)
    names = {"test": "test" if "test" in builder.info.splits else "validation"}
    _check_features(builder, names["test"])
    if "validation" in builder.info.splits and names["test"] != "validation":
        names |= {"train": "train", "validation": "validation"}
    elif data.validation_fraction:
        total = builder.info.splits["train"].num_examples
        kept = min(max(total - round(data.validation_fraction * total), 1), total - 1)
        names |= {"train": f"train[:{kept}]", "validation": f"train[{kept}:]"}
    else:
        names["train"] = "train"
    splits = {
        name: builder.as_dataset(split=split, decoders={"image": tfds.decode.SkipDecoding()})
        for name, split in names.items()
    }
    sizes = {name: builder.info.splits[split].num_examples for name, split in names.items()}
    return Dataset(tuple(builder.info.features["label"].names), splits, sizes)


def _prepared_builder(data):
    if data.dataset == "digits":
        tfds.disable_progress_bar()  # It takes a second.
        builder = Digits(data_dir=data.tfds_directory)
        remedy = "Name a folder that can be written to with data.tfds_directory."
    else:
        builder = _find_builder(data)
        remedy = (
            f'On a machine with a network run: python -c "import tensorflow_datasets as tfds; '
            f"tfds.builder('{data.dataset}').download_and_prepare()\"; copy its ~/tensorflow_datasets here, and name "
            f"the copy with data.tfds_directory."
        )
    try:
        # Nothing prepared is looked for in a bucket: that takes minutes to fail without a network.
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        builder.download_and_prepare(download_config=config)
    except (OSError, AssertionError, tf.errors.OpError, tfds.download.DownloadError) as error:
        raise InputError(f"{data.dataset} cannot be prepared in {builder.data_dir}: {error}. {remedy}") from error
    return builder


def _find_builder(data):
    try:
        return tfds.builder(data.dataset, data_dir=data.tfds_directory)
    except (ValueError, tfds.core.registered.DatasetNotFoundError):
        raise InputError(
            f"data.dataset={data.dataset} is neither digits nor folder nor the name of a TFDS data set. "
            f"Names: https://www.tensorflow.org/datasets/catalog"
        ) from None


def _check_features(builder, test_split):
    features = builder.info.features
    parts = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    is_classification = isinstance(parts.get("image"), tfds.features.Image) and isinstance(
        parts.get("label"), tfds.features.ClassLabel
    )
    if not is_classification or "train" not in builder.info.splits or test_split not in builder.info.splits:
        raise InputError(
            f"{builder.name} is not a data set to classify images with: it needs the features image and label and the "
            f"splits train and test or validation. It has {features} and the splits {', '.join(builder.info.splits)}."
        )
