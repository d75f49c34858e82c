"""Pages of HTML that need nothing beside them, all in one frame and style.

What is in a page is a template, with a style sheet of its own where it has one: `NAME.html`, `NAME.css`.
"""

import base64
import hashlib
import pathlib
import string
from html import escape

_FOLDER = pathlib.Path(__file__).parent


def read(name):
    """The text of a file in this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def part(template, /, **values):
    """A template filled with `values`: {what stands behind a $ in it: HTML}."""
    return string.Template(read(f"{template}.html")).substitute(values)


def page(template, /, *, kind, heading, title, note="", script="", **values):
    """A whole page.

    Args:
        template: Name of its file, without the ending.
        kind: What page it is, in the line above the heading: text, as the next three.
        heading: What it is of.
        title: What a browser's tab says.
        note: A line below the heading.
        script: JavaScript; nothing but it may run, whatever a class or a file is called.
        **values: As for `part`.
    """
    sheets = [name for name in ("style.css", f"{template}.css") if (_FOLDER / name).exists()]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return part(
        "frame",
        script_source=f"'sha256-{digest}'" if script else "'none'",
        style="".join(map(read, sheets)),
        title=escape(title),
        kind=escape(kind),
        heading=escape(heading),
        note=f"<p class=begun>{escape(note)}</p>\n" if note else "",
        main=part(template, **values),
        script=f"<script>{script}</script>\n" if script else "",
    )
