"""Reads archives of samples: tar files such as the shards of WebDataset, TFRecord files, and data sets of TFDS.

The functions yield samples as `keras_vit.data.reading.read_samples` does.
"""

import itertools
import json
import pathlib
import posixpath
import tarfile
from typing import NamedTuple

from keras_vit.data.folder import READABLE

TFDS_PREFIX = "tfds:"
_IMAGES = ("image", "image/encoded")  # Names of the image in the examples of TFRecord files.
_ENCODED_LABEL = "image/class/label"
_HEADER, _FOOTER = 12, 4  # Bytes of a TFRecord file before and after a record: its length and checksums.


class Slice(NamedTuple):
    """A part of a file, such as an image in an archive. `offset` and `size` are in bytes."""

    file: pathlib.Path
    offset: int
    size: int

    def read(self):
        """Reads the bytes of the part. Raises an OSError if this is not possible."""
        with open(self.file, "rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def read_tar(path, as_slices=False):
    """Yields the samples of a tar file.

    Files of the same name up to the first dot of the file name belong to one sample: `cats/1.jpg`, `cats/1.cls` and
    `cats/1.json`. `.cls` contains the label, `.txt` the text of an image, and `.json` an object of annotations.

    Args:
        path: Path of the file.
        as_slices: Whether `image` is a `Slice` in place of the content. The file must not be compressed then.
    """
    parts: dict[str, bytes | Slice] = {}
    name = None
    try:
        # Members are read one after the other, so an archive can be larger than the memory.
        with tarfile.open(path, "r:" if as_slices else "r|*") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                folder, file = posixpath.split(member.name)
                stem, _, suffix = file.partition(".")
                suffix = f".{suffix.lower()}"
                if posixpath.join(folder, stem) != name:
                    yield from _sample(path, name, parts)
                    parts, name = {}, posixpath.join(folder, stem)
                if as_slices and suffix.endswith(READABLE):
                    parts[suffix] = Slice(pathlib.Path(path), member.offset_data, member.size)
                elif opened := archive.extractfile(member):
                    parts[suffix] = opened.read()
        yield from _sample(path, name, parts)
    except (OSError, EOFError, tarfile.TarError) as error:
        yield {"path": str(path), "error": f"cannot be read any further: {error}"}


def _sample(path, name, parts):
    """Yields the sample of the files `parts`, {suffix: content}, if they contain an image.

    `1.seg.png` beside `1.jpg` is no image. Without such a file, a name with several dots is that of an image.
    """
    plain = [suffix for suffix in parts if suffix in READABLE][:1]
    for suffix in plain or [suffix for suffix in parts if suffix.endswith(READABLE)]:
        yield _annotated({"path": f"{path}/{name}{suffix}", "image": parts[suffix]}, parts)


def _annotated(sample, parts):
    """The sample with the annotations in the files `parts`."""
    try:
        if ".json" in parts:
            annotations = json.loads(parts[".json"])
            if not isinstance(annotations, dict):
                raise ValueError("the .json file must contain an object")
            sample = annotations | sample
        for suffix, key in ((".cls", "label"), (".txt", "text")):
            if suffix in parts:
                sample[key] = parts[suffix].decode().strip()
    except ValueError as error:
        return {"path": sample["path"], "error": f"has annotations that cannot be read: {error}"}
    return sample


def read_tfrecord(path, as_slices=False):
    """Yields the samples of a TFRecord file of `tf.train.Example`s.

    The image is the feature `image` or `image/encoded`. The label is `label` or `image/class/label`. Other features are
    annotations: numbers, texts, or lists of several of them.

    Args:
        path: Path or address, such as `gs://bucket/train-00000-of-00016.tfrecord`.
        as_slices: Whether `image` is a `Slice` in place of the content.
    """
    import tensorflow as tf

    records = tf.data.TFRecordDataset(str(path)).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
    start = 0
    try:
        for number, record in enumerate(records):
            sample = {"path": f"{path}:{number}"} | _parsed(tf.train.Example.FromString(record).features.feature)
            if as_slices and "image" in sample:
                content = sample["image"]
                sample["image"] = Slice(pathlib.Path(path), start + _HEADER + record.index(content), len(content))
            yield sample
            start += _HEADER + len(record) + _FOOTER
    except tf.errors.OpError as error:
        yield {"path": str(path), "error": f"cannot be read any further: {error.message}"}


def _parsed(features):
    """The image and the annotations of an example, or the error."""
    image = next((list(features[name].bytes_list.value) for name in _IMAGES if name in features), [])
    if len(image) != 1:
        found = ", ".join(sorted(features)) or "none"
        return {"error": f"has no image. Expected: {' or '.join(_IMAGES)}. Its features: {found}"}
    annotations = {name: _value(feature) for name, feature in features.items() if name not in _IMAGES}
    annotations = {name: value for name, value in annotations.items() if value is not None}
    if _ENCODED_LABEL in annotations:
        annotations.setdefault("label", annotations.pop(_ENCODED_LABEL))
    return annotations | {"image": image[0]}


def _value(feature):
    """The number, text or list in a feature. `None` if it is empty or contains bytes that are not UTF-8."""
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    try:
        values = [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError:
        return None
    return values[0] if len(values) == 1 else values or None


def read_tfds(source):
    """Returns an iterator over the samples of a split of TFDS.

    Args:
        source: `tfds:NAME` or `tfds:NAME:SPLIT`, such as `tfds:cifar10:test[:100]`. By default, the split is `test`.
    """
    import tensorflow_datasets as tfds

    name, _, split = source.removeprefix(TFDS_PREFIX).partition(":")
    split = split or "test"
    try:
        builder = tfds.builder(name)
        builder.download_and_prepare()
        examples = builder.as_dataset(split=split, decoders={"image": tfds.decode.SkipDecoding()}, shuffle_files=False)
    except (ValueError, KeyError, OSError, AssertionError, tfds.core.DatasetNotFoundError) as error:
        raise ValueError(f"{source} cannot be read: {error}") from error
    label = dict(builder.info.features.items()).get("label")

    def sample(number, example):
        named = {"label": label.int2str(int(example["label"]))} if isinstance(label, tfds.features.ClassLabel) else {}
        return {"path": f"{TFDS_PREFIX}{name}:{split}:{number}", "image": example["image"]} | named

    return itertools.starmap(sample, enumerate(examples.as_numpy_iterator()))
