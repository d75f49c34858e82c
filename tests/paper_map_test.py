"""docs/paper_map.md names existing files, and these files contain the names that it lists."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
STATUSES = ("works", "shown here", "works partly", "not run", "missing")
# The first section lists what is shown. The tables of the others list code.
_, SHOWN, MAPPED = re.split(
    r"^## What is shown$|^(?=## An Image)", (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8"), flags=re.M
)


def _rows(text, is_row):
    """The cells of each row, without headings and separators."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if is_row(line)]


ROWS = _rows(MAPPED, lambda line: line.startswith("| ") and "`" in line)
# Rows of three cells. The list of the statuses has two.
SHOWN_ROWS = _rows(SHOWN, lambda line: re.match(r"\| (?!what the papers).*\|.*\|.*\|$", line))


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


def _evidence(cell):
    """The files that a cell names: links from docs/, and paths from the root in backticks."""
    links = [ROOT / "docs" / link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", cell)]
    return links + [ROOT / path for path in re.findall(r"`([^`\s]+/[^`\s]+\.(?:py|md|csv))`", cell)]


def test_each_row_of_what_is_shown_has_a_status_and_existing_evidence():
    assert len(SHOWN_ROWS) >= 111
    assert not [row for row in SHOWN_ROWS if len(row) != 3 or row[1] not in STATUSES]
    assert not [title for title, status, cell in SHOWN_ROWS if status == "shown here" and "](" not in cell]
    assert not [title for title, status, cell in SHOWN_ROWS if status == "works" and not _evidence(cell)]
    assert not [str(path) for *_, cell in SHOWN_ROWS for path in _evidence(cell) if not path.is_file()]
