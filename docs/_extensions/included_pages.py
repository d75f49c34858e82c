"""Mends the links of pages in the repository's root, such as CHANGELOG.md, which pages in docs/project/ include."""

import pathlib
import re


def mend_links(app, path, parent, content):
    """Makes links relative to docs/project/ instead of the repository's root."""
    if path.parent == pathlib.Path(".."):
        text = re.sub(r"\]\(docs/", "](../", content[0])
        content[0] = re.sub(r"\]\(([A-Z]+)\.md", lambda match: f"]({match[1].lower()}.md", text)


def setup(app):
    app.connect("include-read", mend_links)
    return {"parallel_read_safe": True}
