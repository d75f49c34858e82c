"""A table of images and their annotations: a CSV or Parquet file with a column `path`.

    path,label            path,labels             path,age,height
    a.jpg,cat             a.jpg,cat;dog           a.jpg,41,1.74
    b.jpg,dog             b.jpg,                  b.jpg,38,1.81

A column `split` with the values train, test and optionally validation is used if there is one.
"""

import itertools
import os
import pathlib

from keras_vit.data.table import read_table
from training.data.sets.folder import examine, map_in_threads
from training.data.sets.splitting import FolderSplits, find_copies, hold_out, list_items, together
from training.errors import InputError, shortened_names

_SPLITS = ("train", "validation", "test")
_SEPARATOR = ";"


def read_image_table(annotation, file, test_fraction, validation_fraction):
    """Reads a table, and splits its images unless the table does so.

    Args:
        annotation: What is read: `"label"`, the column `label`; `"labels"`, the column `labels`, with semicolons
            between the labels of an image; or `"values"`, all columns besides `path` and `split`, which must be
            numbers.
        file: Path of the table.
        test_fraction: Fraction of the images that are held out for the test, in (0, 1).
        validation_fraction: Fraction of the remaining images that are held out for validation, in [0, 1).

    Returns:
        A `FolderSplits`. A label is the index of a class, a list of indices of labels, or a list of values.

    Raises:
        InputError: If the table cannot be used. The message says what was found and what is expected.
    """
    if file is None:
        raise InputError("The data set table needs data.directory=<path of a .csv or .parquet file>.")
    try:
        table = read_table(file)
        names, labels, texts = _ANNOTATIONS[annotation](table)
    except (ImportError, OSError, ValueError) as error:
        raise InputError(str(error)) from None
    repeated = [str(path) for path, count in _counts(table.paths).items() if count > 1]
    if repeated:
        raise InputError(f"{table.file} lists images more than once: {shortened_names(repeated)}")
    examined = dict(zip(table.paths, map_in_threads(examine, table.paths), strict=True))
    digests = {path: digest for path, (digest, _) in examined.items() if digest}
    skipped = {str(path): problem for path, (_, problem) in examined.items() if problem}
    if not digests:
        problem = next(iter(skipped.items()))
        raise InputError(f"{table.file} lists no image that can be read, such as {problem[0]}: {problem[1]}")
    label_of, text_of = (dict(zip(table.paths, values, strict=True)) for values in (labels, texts))
    by_split, has_splits = _split(table, annotation, digests, text_of, test_fraction, validation_fraction)
    splits = {split: [(str(path), label_of[path]) for path in paths] for split, paths in by_split.items()}
    if not has_splits:
        splits = together(splits, {str(path): digest for path, digest in digests.items()})
    root = pathlib.Path(os.path.commonpath([path.parent for path in digests]))
    items = list_items(root, digests, {path: text_of[path] for path in digests})
    overlap = find_copies(by_split, digests) if has_splits else None
    return FolderSplits(names, splits, items, root, skipped, overlap, (), has_split_folders=has_splits)


def _counts(paths):
    return {path: len(list(group)) for path, group in itertools.groupby(sorted(paths))}


def _split(table, annotation, digests, text_of, test_fraction, validation_fraction):
    """({split: paths}, whether the table defines the splits)"""
    if "split" not in table.columns:
        fractions = {"test": test_fraction, "validation": validation_fraction}
        groups = [list(digests)]
        if annotation == "label":  # The same fraction of each class is held out.
            by_class = sorted(digests, key=lambda path: text_of[path])
            groups = [list(group) for _, group in itertools.groupby(by_class, key=lambda path: text_of[path])]
        held_out = [hold_out(group, fractions, digests) for group in groups]
        return {split: [path for part in held_out for path in part[split]] for split in (*fractions, "train")}, False
    by_split = {}
    for row, (path, split) in enumerate(zip(table.paths, table.columns["split"], strict=True), start=1):
        if split not in _SPLITS:
            raise InputError(f"{table.file}, row {row}: split must be one of {', '.join(_SPLITS)}. Received: {split!r}")
        if path in digests:
            by_split.setdefault(split, []).append(path)
    if "train" not in by_split:
        raise InputError(f"{table.file} has no readable image of the split train.")
    return by_split, True


def _classes(table):
    texts = [str(value) for value in table.column("label")]
    if "" in texts:
        raise ValueError(f"{table.file}, row {texts.index('') + 1}: the image has no label.")
    names = tuple(sorted(set(texts)))
    if len(names) < 2:
        raise ValueError(f"{table.file} has images of only one class, {names[0]!r}. A classifier needs two.")
    return names, [names.index(text) for text in texts], texts


def _labels(table):
    texts = ["" if value is None else str(value) for value in table.column("labels")]
    lists = [[label.strip() for label in text.split(_SEPARATOR) if label.strip()] for text in texts]
    names = tuple(sorted({label for labels in lists for label in labels}))
    if not names:
        raise ValueError(f"{table.file}: no image has a label. The column labels must have text such as 'cat;dog'.")
    return names, [sorted({names.index(label) for label in labels}) for labels in lists], texts


def _values(table):
    names = tuple(name for name in table.columns if name != "split")
    if not names:
        raise ValueError(f"{table.file} has no column of values besides path.")
    columns = [table.numbers(name) for name in names]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return names, rows, [";".join(map(repr, row)) for row in rows]


_ANNOTATIONS = {"label": _classes, "labels": _labels, "values": _values}
"""{annotation: function from a table to names, labels of the rows, and texts of the labels}"""
