"""docs/paper_map.md names existing files, and these files contain the names that it lists."""

import pathlib
import re

import pytest

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


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_files_exist(row):
    files = _files(row)
    assert any(path.name.endswith("_test.py") for path in files)
    assert not all(path.name.endswith("_test.py") for path in files)
    missing = [str(path.relative_to(ROOT)) for path in files if not path.is_file()]
    assert not missing


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_names_are_found(row):
    """Names are compared without arguments and values, e.g. `pooling` for `pooling="avg"`."""
    text = "".join(path.read_text(encoding="utf-8") for path in _files(row))
    code = [name for name in re.findall(r"`([^`]+)`", row[1]) if " " not in name and not name.startswith("keras.")]
    names = [re.split("[(=]", name)[0].rpartition(".")[2].strip("…") for name in code]
    assert not [name for name in names if name not in text]
