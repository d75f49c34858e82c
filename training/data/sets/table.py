"""A table of images and their annotations: a CSV, JSON Lines or Parquet file with a column `path`.

    path,label            path,labels             path,age,height         path,text
    a.jpg,cat             a.jpg,cat;dog           a.jpg,41,1.74           a.jpg,a cat
    b.jpg,dog             b.jpg,                  b.jpg,38,1.81           a.jpg,a cat on a sofa

A column `split` with the values train, test and optionally validation is used if there is one.
"""

import collections
import dataclasses
import functools
import itertools
import os
import pathlib

import numpy as np

from keras_vit.checks import shown
from keras_vit.data.folder import read_file
from keras_vit.data.table import read_table
from training.data.sets.folder import SPLIT_NAMES, examine, map_in_threads
from training.data.sets.splitting import FolderSplits, find_copies, hold_out, list_items, together
from training.errors import InputError, shortened_names

_SEPARATOR = ";"


def read_image_table(annotation, data):
    """Reads a table, and splits its images unless the table does so.

    Args:
        annotation: What is read: `"label"`, the column `label`; `"labels"`, the column `labels`, with semicolons
            between the labels of an image; `"values"`, the columns `data.classes`, or all columns besides `path` and
            `split`, which must be numbers; or `"text"`, the column `text`. An image can have a list of texts, or
            several rows.
        data: `training.recipe.config.Data`. Rows without such an annotation are skipped, at most `data.max_failures`.

    Returns:
        A `FolderSplits`. A label is the index of a class, a list of indices of labels, of values, or of texts.

    Raises:
        InputError: If the table cannot be used. The message says what was found and what is expected.
    """
    if data.directory is None:
        raise InputError("The data set table needs data.directory=<path of a .csv, .tsv, .jsonl or .parquet file>.")
    try:
        table = read_table(data.directory)
    except (ImportError, OSError, ValueError) as error:
        raise InputError(str(error)) from None
    return split_table(table, annotation, data)


def split_table(table, annotation, data, read=read_file, unreadable=None):
    """Splits the images of a `keras_vit.data.table.ImageTable`, as `read_image_table` does.

    Args:
        table: The table.
        annotation, data: Same as in `read_image_table`.
        read: Function that returns the contents of the image at a path, or raises an OSError.
        unreadable: {path: reason} of images that are not in the table, because they cannot be read.
    """
    try:
        if annotation == "values" and data.classes:
            chosen = [*data.classes, *{"split"}.intersection(table.columns)]
            table = dataclasses.replace(table, columns={name: table.column(name) for name in chosen})
        names, texts, parse, problems = ANNOTATIONS[annotation](table)
    except ValueError as error:
        raise InputError(str(error)) from None
    if len(problems) > data.max_failures:
        index, problem = min(problems.items())
        more = f" ({len(problems):,} such rows in all)" if len(problems) > 1 else ""
        raise InputError(
            f"{table.place(index)}: {problem}{more}. Correct it, or skip up to N such images with data.max_failures=N."
            + (" The columns that are values can be chosen: data.classes=NAME,NAME." if annotation == "values" else "")
        )
    repeated = [str(path) for path, count in collections.Counter(table.paths).items() if count > 1]
    if repeated and annotation != "text":
        raise InputError(
            f"{table.file} lists images more than once: {shortened_names(repeated)}. Keep one row for each image."
        )
    rows = collections.defaultdict(list)
    for index, (path, text) in enumerate(zip(table.paths, texts, strict=True)):
        if index not in problems:
            rows[path].append(text)
    text_of = {path: "\n".join(found) for path, found in rows.items()}
    examined = dict(zip(text_of, map_in_threads(functools.partial(examine, read=read), list(text_of)), strict=True))
    digests = {path: digest for path, (digest, _) in examined.items() if digest}
    skipped = (unreadable or {}) | {str(table.paths[index]): problem for index, problem in problems.items()}
    skipped |= {str(path): problem for path, (_, problem) in examined.items() if problem}
    if not digests:
        problem = next(iter(skipped.items()))
        raise InputError(f"{table.file} lists no image that can be read, such as {problem[0]}: {problem[1]}")
    by_split, has_splits = _split(table, annotation, digests, text_of, data)
    splits = {split: [(str(path), parse(text_of[path])) for path in paths] for split, paths in by_split.items()}
    if not has_splits:
        splits = together(splits, {str(path): digest for path, digest in digests.items()})
    root = pathlib.Path(os.path.commonpath([path.parent for path in digests]))
    items = list_items(root, digests, {path: text_of[path] for path in digests})
    overlap = find_copies(by_split, digests) if has_splits else None
    return FolderSplits(names, splits, items, root, skipped, overlap, (), has_splits, parse, read)


def _split(table, annotation, digests, text_of, data):
    """({split: paths}, whether the table defines the splits)"""
    if "split" not in table.columns:
        fractions = {"test": data.test_fraction, "validation": data.validation_fraction}
        groups = [list(digests)]
        if annotation == "label":  # The same fraction of each class is held out.
            by_class = sorted(digests, key=lambda path: text_of[path])
            groups = [list(group) for _, group in itertools.groupby(by_class, key=lambda path: text_of[path])]
        held_out = [hold_out(group, fractions, digests) for group in groups]
        return {split: [path for part in held_out for path in part[split]] for split in (*fractions, "train")}, False
    by_split = {}
    for index, (path, split) in enumerate(zip(table.paths, table.columns["split"], strict=True)):
        name = SPLIT_NAMES.get(str(split).lower())
        if name is None:
            raise InputError(
                f"{table.place(index)}: split must be one of {', '.join(SPLIT_NAMES)}. Received: {split!r}"
            )
        if path in digests:
            by_split.setdefault(name, {})[path] = None
    return {name: list(paths) for name, paths in by_split.items()}, True


def _classes(table):
    texts = _texts(table.column("label"))
    found = set(texts) - {""}
    # The classes 2 and 10 are in the order of the numbers.
    names = tuple(sorted(found, key=int if all(map(str.isdecimal, found)) else None))
    if len(names) == 1:
        raise ValueError(f"{table.file} has images of only one class, {names[0]!r}. A classifier needs two.")
    return names, texts, names.index, {index: "the image has no label" for index, text in enumerate(texts) if not text}


def _labels(table):
    lists = [list(filter(None, map(str.strip, text.split(_SEPARATOR)))) for text in _texts(table.column("labels"))]
    names = tuple(sorted({label for labels in lists for label in labels}))
    if not names:
        raise ValueError(f"{table.file}: no image has a label. The column labels must have text such as 'cat;dog'.")
    if all(len(labels) < 2 for labels in lists):
        parts = collections.Counter(part.strip() for name in names for part in name.split(","))
        repeated = {part for part, count in parts.items() if count > 1}
        joined = [name for name in names if "," in name and repeated.intersection(map(str.strip, name.split(",")))]
        if joined:
            raise ValueError(f"{table.file}: labels are separated by semicolons, not commas. Received: {joined[0]!r}")
    texts = [_SEPARATOR.join(labels) for labels in lists]
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


def _captions(table):
    lists = (value if isinstance(value, (list, tuple)) else [value] for value in table.column("text"))
    lists = ([" ".join(text.split()) for text in _texts(texts)] for texts in lists)
    texts = ["\n".join(filter(None, texts)) for texts in lists]
    problems = {index: "the image has no text" for index, text in enumerate(texts) if not text}
    return ("text",), texts, str.splitlines, problems


def _texts(values):
    """The values of a column as text. Lists are joined, and missing values are empty."""
    if wrong := next((value for value in values if isinstance(value, dict)), None):
        raise ValueError(f"A label is a text, or a list of texts. Received: {shown(wrong)}")
    joined = (_SEPARATOR.join(map(str, value)) if isinstance(value, (list, tuple)) else value for value in values)
    return ["" if value is None else str(value) for value in joined]


ANNOTATIONS = {"label": _classes, "labels": _labels, "values": _values, "text": _captions}
"""{annotation: function of a table}. It returns the names of the classes, labels or values; the text of each row; a
function from a text to a label; and {index of a row: why it has no such annotation}."""
