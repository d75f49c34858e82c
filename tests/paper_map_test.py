"""docs/paper_map.md names existing files, and these files contain the names that it lists."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
# The cells of each row, without headings and separators.
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "`" in line
]


def _files(row):
    return [ROOT / name for cell in row[2:4] for name in re.findall(r"`([^`]+)`", cell)]


def test_there_are_rows():
    assert len(ROWS) > 80


def test_each_row_names_existing_code_and_an_existing_test():
    missing = {row[0]: [str(path) for path in _files(row) if not path.is_file()] for row in ROWS}
    assert not {title: paths for title, paths in missing.items() if paths}
    is_test = {row[0]: {path.name.endswith("_test.py") for path in _files(row)} for row in ROWS}
    assert not [title for title, kinds in is_test.items() if kinds != {True, False}]


def test_names_are_found():
    """Names are compared without arguments and values, e.g. `pooling` for `pooling="avg"`."""
    unknown = {}
    for row in ROWS:
        text = "".join(path.read_text(encoding="utf-8") for path in _files(row))
        code = [name for name in re.findall(r"`([^`]+)`", row[1]) if " " not in name and not name.startswith("keras.")]
        names = [re.split("[(=]", name)[0].rpartition(".")[2].strip("…") for name in code]
        unknown[row[0]] = [name for name in names if name not in text]
    assert not {title: names for title, names in unknown.items() if names}
