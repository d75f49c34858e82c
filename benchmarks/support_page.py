"""The page docs/support.md. Two programs write it: one compares this package with timm, the other with transformers."""

import pathlib

_PAGE = pathlib.Path(__file__).parents[1] / "docs" / "support.md"
_MARK = "\n<!-- python -m benchmarks.support_matrix_transformers writes the text below. -->\n\n"
TIMM, TRANSFORMERS = 0, 1


def read_part(part):
    """The text of a part of the page, `TIMM` or `TRANSFORMERS`."""
    return [*_PAGE.read_text().split(_MARK), ""][part]


def write_part(part, text):
    """Replaces a part of the page by a text in Markdown."""
    parts = [read_part(TIMM), read_part(TRANSFORMERS)]
    parts[part] = text
    _PAGE.write_text(_MARK.join(parts))
