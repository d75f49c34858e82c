"""Tables as printed in papers. They are shown beside measured results, and never instead of them."""

import csv
import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Table:
    """A printed table. `source` describes its origin. Each of its `rows` is {column: text, number or `None`}."""

    source: str
    rows: tuple[dict[str, str | float | None], ...]


def read(name):
    """Reads the `Table` in a file of this folder, such as `"vit_table9"`.

    The first line of the file is the source. An empty cell, for which the paper has no number, becomes `None`.
    """
    with open(pathlib.Path(__file__).with_name(f"{name}.csv"), newline="", encoding="utf-8") as file:
        source = file.readline().removeprefix("#").strip()
        rows = tuple({column: _value(text) for column, text in row.items()} for row in csv.DictReader(file))
    return Table(source, rows)


def _value(text):
    try:
        return float(text) if text else None
    except ValueError:
        return text
