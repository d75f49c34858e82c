"""A data set as TFRecord shards in one directory, on a disk or in a bucket.

records.json                    class names, and the number of images in each shard
train-00000-of-00016.tfrecord   tf.train.Example with image (encoded bytes) and label (int64), or another annotation
test-00000-of-00001.tfrecord
"""

import concurrent.futures
import functools
import hashlib
import itertools
import json
import posixpath
from typing import Annotated, Literal

import numpy as np
import pydantic
import tensorflow as tf

from training.data.contents import Contents, Item
from training.data.dataset import Dataset
from training.data.sets.splitting import find_copies
from training.data.sources import BatchShard, StreamedSource, cut
from training.errors import InputError
from training.recipe.assignments import explain

_INDEX = "records.json"
_THREADS = 16  # Number of shards whose digests are computed at the same time.
_BLOCK = 65_536  # Bytes of a block that the digest of a shard covers.
_Files = Annotated[dict[str, pydantic.PositiveInt], pydantic.Field(min_length=1)]
TYPES = {"label": tf.int64, "labels": tf.int64, "values": tf.float32, "mask": tf.string}
"""{annotation: its type in the shards}"""


class _Index(pydantic.BaseModel):
    """The contents of `records.json`: annotation, names of the classes, and {split: {file: number of images}}."""

    annotation: Literal[*TYPES] = "label"  # type: ignore[valid-type]
    class_names: tuple[str, ...]
    splits: dict[Literal["train", "validation", "test"], _Files]

    @pydantic.field_validator("splits")
    @classmethod
    def _check_files(cls, splits):
        for (one, files), (other, other_files) in itertools.combinations(splits.items(), 2):
            shared = sorted(files.keys() & other_files.keys())
            if shared:
                raise ValueError(
                    f"{shared[0]} is in the splits {one} and {other}, but a file must be in only one split"
                )
        return splits


def write_records(dataset, directory, annotation="label", images_per_shard=1000):
    """Writes a data set as shards, with its images in a fixed random order.

    Args:
        dataset: `training.data.dataset.Dataset`
        directory: Path or URL of the target, e.g. `gs://bucket/folder`. It must not contain shards.
        annotation: The annotation of `training.data.samples` that is written.
        images_per_shard: Number of images in a shard. Shards of 100 to 200 MB are read efficiently.

    Returns:
        Number of shards.

    Raises:
        InputError: If the directory cannot be written to, or contains shards.
    """
    index_path = posixpath.join(directory, _INDEX)
    try:
        if tf.io.gfile.exists(index_path):
            raise InputError(f"{directory} already contains shards. Choose another directory.")
        tf.io.gfile.makedirs(directory)
        splits = {
            name: dict(_write_split(source, directory, name, annotation, images_per_shard))
            for name, source in dataset.splits.items()
        }
        with tf.io.gfile.GFile(index_path, "w") as file:  # Written last: without it, a directory is incomplete.
            annotations = {} if annotation == "label" else {"annotation": annotation}
            index = annotations | {"class_names": dataset.class_names, "splits": splits}
            file.write(json.dumps(index, indent=2) + "\n")
    except tf.errors.OpError as error:
        raise InputError(f"Shards cannot be written to {directory}: {error.message}") from None
    return sum(map(len, splits.values()))


def _write_split(source, directory, name, annotation, images_per_shard):
    """Writes the shards of a split, and yields (file name, number of images) of each shard."""
    count = -(-source.size // images_per_shard)
    # The images of a folder are ordered by class. A reader of shards shuffles only within a buffer, so it would not mix
    # the classes of such images. Here, all examples are in random order.
    keys = source.epoch(tf.constant(0, tf.int64), BatchShard(batch_size=1), tf.constant(0, tf.int64), seed=0)
    examples = keys.map(lambda _, key: source.read(key), tf.data.AUTOTUNE).as_numpy_iterator()
    for number in range(count):
        file_name = f"{name}-{number:05d}-of-{count:05d}.tfrecord"
        records = [
            _serialize(example["image"], annotation, example[annotation])
            for example in itertools.islice(examples, images_per_shard)
        ]
        with tf.io.TFRecordWriter(posixpath.join(directory, file_name)) as writer:
            for record in records:
                writer.write(record)
        yield file_name, len(records)


def _serialize(image, annotation, value):
    features = {"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))}
    if TYPES[annotation] == tf.string:
        features[annotation] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    elif TYPES[annotation] == tf.float32:
        features[annotation] = tf.train.Feature(float_list=tf.train.FloatList(value=value))
    else:
        features[annotation] = tf.train.Feature(int64_list=tf.train.Int64List(value=np.atleast_1d(value).astype(int)))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def read_records(directory, shuffle_buffer, annotation="label"):
    """Reads a directory of shards as a `training.data.dataset.Dataset`.

    Raises:
        InputError: If the directory has no valid shards with this annotation. The message names the command that writes
            them.
    """
    if directory is None:
        raise InputError("The records data set needs data.directory=<folder or bucket of the shards>.")
    try:
        with tf.io.gfile.GFile(posixpath.join(directory, _INDEX), "rb") as file:
            index = _Index.model_validate_json(file.read())
    except (tf.errors.OpError, pydantic.ValidationError) as error:
        problem = explain(error) if isinstance(error, pydantic.ValidationError) else error
        raise InputError(
            f"{directory} is not a directory of shards, because its {_INDEX} cannot be read: {problem}. To write "
            f"shards: python -m training records RECIPE --to {directory}"
        ) from None
    if index.annotation != annotation:
        raise InputError(
            f"The shards in {directory} have the annotation {index.annotation!r}, but this task needs {annotation!r}. "
            f"Choose a recipe for {index.annotation}, or other shards."
        )
    shape = [len(index.class_names)] if annotation in ("labels", "values") else []
    feature = tf.io.FixedLenFeature(shape, TYPES[annotation])
    splits: dict = {
        name: _source(directory, files, shuffle_buffer, annotation, feature) for name, files in index.splits.items()
    }

    @functools.cache
    def contents():
        read = functools.partial(_item, directory)
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            return Contents({split: tuple(pool.map(read, files)) for split, files in index.splits.items()})

    def find_overlap():  # A shard may be in two splits under different names.
        digests = {item.path: item.digest for item in contents()}
        return find_copies(index.splits, digests, "Shards", f"Remove one shard of each pair from {_INDEX}.")

    return Dataset(index.class_names, splits, find_overlap, contents)


def _item(directory, name):
    """The `Item` of a shard. Its digest covers the size, and blocks at the start, in the middle and at the end.

    Shards may have terabytes in total, so they are not read as a whole. A shard that was written again differs in its
    first block, because it has other images or another order.
    """
    path = posixpath.join(directory, name)
    try:
        size = tf.io.gfile.stat(path).length
        digest = hashlib.sha256(str(size).encode())
        with tf.io.gfile.GFile(path, "rb") as file:
            for start in (0, max(size - _BLOCK, 0) // 2, max(size - _BLOCK, 0)):
                file.seek(start)
                digest.update(file.read(_BLOCK))
    except tf.errors.OpError as error:
        raise InputError(f"{path} cannot be read: {error.message}. {_INDEX} lists this shard.") from None
    return Item(name, size, digest.hexdigest())


def _source(directory, files, shuffle_buffer, annotation, feature):
    shards = [(posixpath.join(directory, name), 0, count) for name, count in files.items()]
    listed = {path: count for path, _, count in shards}

    def parse(record):
        features = {"image": tf.io.FixedLenFeature([], tf.string), annotation: feature}
        example = tf.io.parse_single_example(record, features)
        return example | {annotation: example[annotation] > 0} if annotation == "labels" else example

    def stream(ranges, seed):
        pieces = [piece for first, end in ranges for piece in cut(shards, first, end)]
        # A process may get no images of a small split. The lists are then empty, so their dtypes must be given.
        paths = tf.constant([path for path, _, _ in pieces], tf.string)
        starts, stops = (tf.constant([piece[i] for piece in pieces], tf.int64) for i in (1, 2))
        parts = tf.data.Dataset.from_tensor_slices((paths, starts, stops))
        if pieces and seed is not None:
            parts = parts.shuffle(len(pieces), seed, reshuffle_each_iteration=False)
        records = parts.interleave(
            lambda path, start, stop: (
                tf.data.TFRecordDataset(path).skip(start).concatenate(_end(path, listed)).take(stop - start)
            ),
            cycle_length=16 if seed is not None else 1,
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        return records.map(parse)

    return StreamedSource(sum(files.values()), stream, shuffle_buffer)


@tf.autograph.experimental.do_not_convert  # AutoGraph cannot convert the loop in `refuse`.
def _end(path, listed):
    """Follows the last record of a shard. Raises an InputError when it is read: the index lists more images.

    Args:
        path: Path of the shard, a scalar string.
        listed: {path: number of images in the index}
    """

    def refuse(path):
        path, found = path.decode(), 0
        with tf.io.gfile.GFile(path, "rb") as file:
            while head := file.read(12):  # A record: its length in 8 bytes, a checksum, the bytes, a checksum.
                file.seek(file.tell() + int.from_bytes(head[:8], "little") + 4)
                found += 1
        raise InputError(
            f"{path} has {found:,} images, but {_INDEX} lists {listed[path]:,}. Correct the number in {_INDEX}, or "
            f"write the shards again into another directory: python -m training records RECIPE --to DIRECTORY"
        )

    def read(path):
        return tf.ensure_shape(tf.numpy_function(refuse, [path], tf.string, stateful=False), [])

    # With `from_tensors`, TensorFlow would read the shards one after the other in deterministic mode.
    return tf.data.Dataset.from_tensor_slices([path]).map(read)
