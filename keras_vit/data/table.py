"""Reads tables of images: CSV, JSON Lines and Parquet files with a column of paths, and columns of annotations."""

import csv
import dataclasses
import itertools
import json
import os
import pathlib

from keras_vit.checks import did_you_mean, shown

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Suffixes of tables"""
PATH = "path"
"""Name of the column that contains the paths of the images"""
_MOST_NAMES = 20  # Of columns, in messages.


@dataclasses.dataclass(frozen=True)
class ImageTable:
    """The rows of a table of images.

    Args:
        file: Path of the table.
        paths: Path of the image of each row. Relative paths in the table start at the folder of the table.
        columns: {name of a column: its value in each row}. The values of CSV files are text without spaces around it.
    """

    file: pathlib.Path
    paths: tuple[pathlib.Path, ...]
    columns: dict[str, list]

    def column(self, name):
        """The values of a column. Raises a ValueError that names the columns if there is no such column."""
        if name == PATH and name not in self.columns:
            names = ", ".join(itertools.islice(self.columns, _MOST_NAMES))
            raise ValueError(f"{self.file} has no column {PATH!r}. Name the column of the images so. Columns: {names}")
        if name not in self.columns:
            known = ", ".join(itertools.islice(self.columns, _MOST_NAMES)) or "none"
            hint = did_you_mean(name, self.columns)
            raise ValueError(f"{self.file} has no column {name!r}.{hint} Columns besides {PATH!r}: {known}")
        return self.columns[name]

    def place(self, index):
        """Names a row in a message, by its number from 1 and its image."""
        return f"{self.file}, row {index + 1} ({self.paths[index].name})"

    def numbers(self, name):
        """The values of a column as floats. They are NaN where the column has no finite number."""
        numbers = []
        for value in self.column(name):
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = float("nan")
            numbers.append(number if abs(number) < float("inf") else float("nan"))
        return numbers


def read_table(file: str | os.PathLike) -> ImageTable:
    """Reads a table of images.

    Args:
        file: Path of a `.csv`, `.tsv`, `.jsonl` or `.parquet` file. The first line of a `.csv` or `.tsv` file has the
            names of the columns, which are separated by commas, semicolons or tabs. A line of a `.jsonl` file is an
            object, whose keys are the columns. One column is called `path`.

    Returns:
        An `ImageTable`. Whether the images exist is not checked.

    Raises:
        ImportError: If a Parquet file is read and pyarrow is not installed.
        OSError: If the file cannot be read.
        ValueError: If the file is not such a table, or a row has no path.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_vit.data.table import read_table
    >>> file = pathlib.Path(tempfile.mkdtemp(), "people.csv")
    >>> _ = file.write_text("path,age\\nann.jpg,41\\nbob.jpg,38\\n")
    >>> read_table(file).numbers("age")
    [41.0, 38.0]
    """
    file = pathlib.Path(file).expanduser()
    if file.suffix.lower() not in SUFFIXES or not file.is_file():
        raise ValueError(f"{file} is not a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file that exists.")
    columns = {".parquet": _read_parquet, ".jsonl": _read_json_lines}.get(file.suffix.lower(), _read_text)(file)
    paths = ImageTable(file, (), columns).column(PATH)
    if not paths:
        raise ValueError(f"{file} has no rows.")
    for row, path in enumerate(paths, start=1):
        if not isinstance(path, str) or not path:
            raise ValueError(f"{file}, row {row}: there is no path. Received: {shown(path)}")
    others = {name: values for name, values in columns.items() if name != PATH}
    return ImageTable(file, tuple(file.parent / pathlib.Path(path).expanduser() for path in paths), others)


def _read_text(file):
    try:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            header = opened.readline()
            opened.seek(0)
            delimiter = max(",;\t", key=header.count)
            reader = csv.reader(opened, delimiter=delimiter, strict=True)
            rows = [[cell.strip() for cell in row] for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not a table of text in UTF-8: {error}") from None
    if not rows:
        raise ValueError(f"{file} is empty. The first line must have the names of the columns.")
    names, *rows = rows
    if len(set(names)) < len(names) or not all(names):
        raise ValueError(f"{file}: the names of the columns must be different and not empty. Received: {names}")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise ValueError(
                f"{file}, row {number} ({row[0]}) has {len(row)} cells, but there are {len(names)} columns. A cell "
                f"that contains {delimiter!r} must be in quotes. Labels of an image are separated by semicolons."
            )
    return {name: [row[number] for row in rows] for number, name in enumerate(names)}


def _read_json_lines(file):
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
        rows = [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise ValueError(f"{file} is not a file of JSON Lines in UTF-8: {error}") from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ValueError(f"{file}, row {number}: an object is needed. Received: {shown(row)}")
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    return {name: [row.get(name) for row in rows] for name in names}


def _read_parquet(file):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"{file} is a Parquet file, which needs pyarrow: pip install pyarrow") from error
    try:
        return pyarrow.parquet.read_table(file).to_pydict()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{file} cannot be read as a Parquet file: {error}") from None
