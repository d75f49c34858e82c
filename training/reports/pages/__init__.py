"""Self-contained HTML pages with a common frame and style.

The content of a page is the template `NAME.html`, with an optional style sheet `NAME.css`.
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
    """Fills a template with `values`, {name of a `$name` placeholder: HTML}."""
    return string.Template(read(f"{template}.html")).substitute(values)


def page(template, /, *, kind, heading, title, note="", script="", **values):
    """Renders a whole page.

    Args:
        template: Name of the template's file, without the extension.
        kind: Kind of the page, shown above the heading. Like the next three arguments, it is plain text, not HTML.
        heading: Subject of the page.
        title: Title of the browser's tab.
        note: Text below the heading.
        script: JavaScript. No other script can run, even if the name of a class or a file contains a script.
        **values: As in `part`.
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
