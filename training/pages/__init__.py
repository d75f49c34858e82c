"""Pages of HTML that need nothing beside them, all in one style: a template each, and `style.css`."""

import pathlib
import string

_FOLDER = pathlib.Path(__file__).parent


def read(name):
    """The text of a file in this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def fill(template, /, **values):
    """The page of a template.

    Args:
        template: Name of its file, without the ending.
        **values: {what stands behind a $ in it: HTML}
    """
    return string.Template(read(f"{template}.html")).substitute(values, style=read("style.css"))
