"""Reads the images of any source, one after the other."""

import os
import pathlib
from collections.abc import Iterator

from keras_vit.data.archives import TFDS_PREFIX, read_tar, read_tfds, read_tfrecord
from keras_vit.data.folder import find_images, read_file
from keras_vit.data.table import SUFFIXES, read_table


def read_samples(source: str | os.PathLike) -> Iterator[dict]:
    """Reads the images of a source.

    Args:
        source: One of these:

            * the path of an image
            * a folder: its images, also in subfolders
            * a `.txt` file with the path of an image in each line. Relative paths start at the folder of the file.
            * a table (`keras_vit.data.table`): a `.csv`, `.tsv` or `.parquet` file with a column `path`. Its other
              columns are annotations.
            * a `.tar` archive, such as a shard of WebDataset, also compressed (`keras_vit.data.archives`)
            * a `.tfrecord` file of `tf.train.Example`s, whose features are annotations
            * `tfds:NAME` or `tfds:NAME:SPLIT`, a data set of TFDS

    Yields:
        Samples: dictionaries with `path`, a text that identifies the image in its source; `image`, the content of its
        file; and annotations, if the source has any. If an image cannot be read, its sample has `error`, such as
        `"cannot be read: Permission denied"`, in place of `image`. Whether the image can be decoded is not checked.

    Raises:
        ImportError: If a library is missing that reads the source.
        OSError: If the source cannot be read.
        ValueError: If the source is not one of these.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_vit.data.reading import read_samples
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "cat.jpg").write_bytes(b"\\xff\\xd8...")
    >>> [sorted(sample) for sample in read_samples(folder)]
    [['image', 'path']]
    """
    if str(source).startswith(TFDS_PREFIX):
        return read_tfds(str(source))
    path = pathlib.Path(source).expanduser()
    name = path.name.lower()
    if ".tfrecord" in name:
        return _not_empty(source, read_tfrecord(source))
    if path.is_dir():
        paths = find_images(path)
        if not paths:
            raise ValueError(f"{path} has no images.")
        return map(_read_file, paths)
    if not path.exists():
        raise FileNotFoundError(2, "No such file or folder", str(path))
    if path.suffix.lower() in SUFFIXES:
        return _read_table(path)
    if path.suffix.lower() == ".txt":
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        return (_read_file(path.parent / pathlib.Path(line).expanduser()) for line in lines if line.strip())
    if name.endswith((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")):
        return _not_empty(path, read_tar(path))
    return map(_read_file, [path])


def _read_table(path):
    table = read_table(path)

    def read(row):
        return {name: values[row] for name, values in table.columns.items()} | _read_file(table.paths[row])

    return map(read, range(len(table.paths)))


def _not_empty(source, samples):
    """Yields samples, or an error if there are none."""
    first = next(samples, {"path": str(source), "error": "has no images"})
    yield first
    yield from samples


def _read_file(path):
    try:
        return {"path": str(path), "image": read_file(path)}
    except OSError as error:
        return {"path": str(path), "error": f"cannot be read: {error.strerror or error}"}
