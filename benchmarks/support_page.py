"""The page docs/support.md. Three programs write it.

They compare models with timm, models with transformers, and the preparation of images with both.
"""

import pathlib

_PAGE = pathlib.Path(__file__).parents[1] / "docs" / "support.md"
_MARKS = tuple(
    f"\n<!-- python -m benchmarks.{program} writes the text below. -->\n\n"
    for program in ("support_matrix_transformers", "support_matrix_settings")
)
TIMM, TRANSFORMERS, SETTINGS = range(3)


def read_part(part):
    """The text of a part of the page, `TIMM`, `TRANSFORMERS` or `SETTINGS`."""
    return _parts()[part]


def write_part(part, text):
    """Replaces a part of the page by a text in Markdown."""
    parts = _parts()
    parts[part] = text
    first, *others = parts
    _PAGE.write_text(first + "".join(mark + other for mark, other in zip(_MARKS, others, strict=True)))


def _parts():
    parts, rest = [], _PAGE.read_text()
    for mark in _MARKS:
        part, _, rest = rest.partition(mark)
        parts.append(part)
    return [*parts, rest]
