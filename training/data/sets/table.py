"""A table of images and their annotations: a CSV or Parquet file with a column `path`.

    path,label            path,labels             path,age,height
    a.jpg,cat             a.jpg,cat;dog           a.jpg,41,1.74
    b.jpg,dog             b.jpg,                  b.jpg,38,1.81

A column `split` with the values train, test and optionally validation is used if there is one.
"""

import collections
import functools
import itertools
import os
import pathlib

import numpy as np

from keras_vit.checks import shown
from keras_vit.data.folder import read_file
from keras_vit.data.table import read_table
from training.data.sets.folder import examine, map_in_threads
from training.data.sets.splitting import FolderSplits, find_copies, hold_out, list_items, together
from training.errors import InputError, shortened_names

_SPLITS = ("train", "validation", "test")
_SEPARATOR = ";"


def read_image_table(annotation, max_failures, file, test_fraction, validation_fraction):
    """Reads a table, and splits its images unless the table does so.

    Args:
        annotation: What is read: `"label"`, the column `label`; `"labels"`, the column `labels`, with semicolons
            between the labels of an image; or `"values"`, all columns besides `path` and `split`, which must be
            numbers.
        max_failures: Maximum number of rows without such an annotation. They are skipped.
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
    except (ImportError, OSError, ValueError) as error:
        raise InputError(str(error)) from None
    return split_table(table, annotation, max_failures, test_fraction, validation_fraction)


def split_table(table, annotation, max_failures, test_fraction, validation_fraction, read=read_file, unreadable=None):
    """Splits the images of a `keras_vit.data.table.ImageTable`, as `read_image_table` does.

    Args:
        table: The table.
        annotation, max_failures, test_fraction, validation_fraction: Same as in `read_image_table`.
        read: Function that returns the contents of the image at a path, or raises an OSError.
        unreadable: {path: reason} of images that are not in the table, because they cannot be read.
    """
    try:
        names, texts, parse, problems = ANNOTATIONS[annotation](table)
    except ValueError as error:
        raise InputError(str(error)) from None
    if len(problems) > max_failures:
        index, problem = min(problems.items())
        more = f" ({len(problems):,} such rows in all)" if len(problems) > 1 else ""
        raise InputError(
            f"{table.place(index)}: {problem}{more}. Correct the table, or skip up to N rows with data.max_failures=N."
        )
    repeated = [str(path) for path, count in collections.Counter(table.paths).items() if count > 1]
    if repeated:
        raise InputError(f"{table.file} lists images more than once: {shortened_names(repeated)}")
    text_of = {
        path: text for index, (path, text) in enumerate(zip(table.paths, texts, strict=True)) if index not in problems
    }
    examined = dict(zip(text_of, map_in_threads(functools.partial(examine, read=read), list(text_of)), strict=True))
    digests = {path: digest for path, (digest, _) in examined.items() if digest}
    skipped = (unreadable or {}) | {str(table.paths[index]): problem for index, problem in problems.items()}
    skipped |= {str(path): problem for path, (_, problem) in examined.items() if problem}
    if not digests:
        problem = next(iter(skipped.items()))
        raise InputError(f"{table.file} lists no image that can be read, such as {problem[0]}: {problem[1]}")
    by_split, has_splits = _split(table, annotation, digests, text_of, test_fraction, validation_fraction)
    splits = {split: [(str(path), parse(text_of[path])) for path in paths] for split, paths in by_split.items()}
    if not has_splits:
        splits = together(splits, {str(path): digest for path, digest in digests.items()})
    root = pathlib.Path(os.path.commonpath([path.parent for path in digests]))
    items = list_items(root, digests, {path: text_of[path] for path in digests})
    overlap = find_copies(by_split, digests) if has_splits else None
    return FolderSplits(names, splits, items, root, skipped, overlap, (), has_splits, parse, read)


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
    for index, (path, split) in enumerate(zip(table.paths, table.columns["split"], strict=True)):
        if split not in _SPLITS:
            raise InputError(f"{table.place(index)}: split must be one of {', '.join(_SPLITS)}. Received: {split!r}")
        if path in digests:
            by_split.setdefault(split, []).append(path)
    if "train" not in by_split:
        raise InputError(f"{table.file} has no readable image of the split train.")
    return by_split, True


def _classes(table):
    texts = _texts(table.column("label"))
    found = set(texts) - {""}
    # The classes 2 and 10 are in the order of the numbers.
    names = tuple(sorted(found, key=int if all(map(str.isdecimal, found)) else None))
    if len(names) == 1:
        raise ValueError(f"{table.file} has images of only one class, {names[0]!r}. A classifier needs two.")
    return names, texts, names.index, {index: "the image has no label" for index, text in enumerate(texts) if not text}


def _labels(table):
    lists = [[label.strip() for label in text.split(_SEPARATOR)] for text in _texts(table.column("labels"))]
    names = tuple(sorted({label for labels in lists for label in labels if label}))
    if not names:
        raise ValueError(f"{table.file}: no image has a label. The column labels must have text such as 'cat;dog'.")
    texts = [_SEPARATOR.join(filter(None, labels)) for labels in lists]
    return names, texts, lambda text: sorted({names.index(label) for label in text.split(_SEPARATOR) if label}), {}


def _values(table):
    names = tuple(name for name in table.columns if name != "split")
    if not names:
        raise ValueError(f"{table.file} has no column of values besides path.")
    columns = {name: table.numbers(name) for name in names}
    problems = {
        index: f"{name} must be a number. Received: {shown(table.columns[name][index])}"
        for name, column in columns.items()
        for index in np.flatnonzero(np.isnan(column)).tolist()
    }
    texts = [_SEPARATOR.join(map(repr, row)) for row in zip(*columns.values(), strict=True)]
    return names, texts, lambda text: [float(value) for value in text.split(_SEPARATOR)], problems


def _texts(values):
    """The values of a column as text. Lists are joined, and missing values are empty."""
    joined = (_SEPARATOR.join(map(str, value)) if isinstance(value, (list, tuple)) else value for value in values)
    return ["" if value is None else str(value) for value in joined]


ANNOTATIONS = {"label": _classes, "labels": _labels, "values": _values}
"""{annotation: function of a table}. It returns the names of the classes, labels or values; the text of each row; a
function from a text to a label; and {index of a row: why it has no such annotation}."""
