"""Reads the tables of the catalogue: text in columns that are separated by tabs."""

import csv
import importlib.resources
import json


def read_table(name, json_columns):
    """Yields the rows of a table in this folder as {column: value}. Empty cells are left out.

    Args:
        name: Name of the file.
        json_columns: Columns whose cells are JSON. Lists become tuples. The cells of other columns are text.
    """
    lines = (importlib.resources.files(__package__) / name).read_text("utf-8").splitlines()
    for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
        cells = {column: text for column, text in row.items() if text}
        yield {column: _tuples(json.loads(text)) if column in json_columns else text for column, text in cells.items()}


def _tuples(value):
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(value) if isinstance(value, list) else value
