"""Archives of samples: `.tar` files such as the shards of WebDataset, and `.tfrecord` files of `tf.train.Example`s.

    photographs/train-000.tar       cats/1.jpg, cats/1.cls, dogs/7.jpg, dogs/7.cls, ...
    photographs/test-000.tar

`keras_vit.data.archives` describes their contents. The images are read from the archives in any order.
"""

import itertools
import pathlib

from keras_vit.data.archives import read_tar, read_tfrecord
from keras_vit.data.table import ImageTable
from training.data.sets.folder import splits_in_names
from training.data.sets.table import split_table
from training.errors import InputError

_READERS = {".tar": read_tar, ".tfrecord": read_tfrecord}
_EXPECTED = "Expected a .tar or .tfrecord file, or a folder of such files"


def read_archives(annotation, data):
    """Reads the annotations of archives, and splits their images.

    If the names of the archives contain the word `train`, `test`, `val` or `validation`, these are the splits. The
    arguments, the result and the errors are those of `read_image_table`. Labels and values of `.tar` files are those in
    `.json` files. Only the label of a classifier can be in a `.cls` file.
    """
    directory = data.directory
    if directory is None:
        raise InputError(f"The data set archives needs data.directory=<path>. {_EXPECTED}.")
    root = pathlib.Path(directory).expanduser()
    files = sorted(path for path in root.rglob("*") if _reader(path)) if root.is_dir() else [root]
    if not files or not root.exists() or not all(map(_reader, files)):
        raise InputError(f"data.directory={directory} has no archives that can be read. {_EXPECTED}.")
    if (root / "records.json").exists():
        raise InputError(f"{directory} has the shards of python -m training records. Set data.dataset=records.")
    splits = splits_in_names(root, files)
    named = {file: {"split": split} for file, split in splits.items()}
    samples = [sample | named.get(file, {}) for file in files for sample in _reader(file)(file, as_slices=True)]
    unreadable = {sample["path"]: sample["error"] for sample in samples if "error" in sample}
    samples = [sample for sample in samples if "error" not in sample]
    slices = {pathlib.Path(sample["path"]): sample["image"] for sample in samples}
    if not slices:
        path, problem = next(iter(unreadable.items()), (directory, "has no images"))
        raise InputError(f"{path}: {problem}. {_EXPECTED}, which are not compressed.")
    names = [name for name in dict.fromkeys(itertools.chain.from_iterable(samples)) if name not in ("path", "image")]
    table = ImageTable(root, tuple(slices), {name: [sample.get(name) for sample in samples] for name in names})
    return split_table(table, annotation, data, lambda path: slices[path].read(), unreadable)


def _reader(path):
    """The function that reads a file, or `None` if it is no archive."""
    found = [read for suffix, read in _READERS.items() if suffix in path.name.lower()]
    return found[0] if found and path.is_file() else None
