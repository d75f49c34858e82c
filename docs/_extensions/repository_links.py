"""Mends links between pages in docs/ and pages in the repository's root, which docs/project/ includes."""

import pathlib
import re


def mend_page(app, page, content):
    """Makes the links of a page in docs/ to a page in the root lead to the page that includes it."""
    top = "../" * page.count("/")
    content[0] = re.sub(
        r"\]\((?:\.\./)+([A-Z]+)\.md", lambda match: f"]({top}project/{match[1].lower()}.md", content[0]
    )


def mend_included(app, path, parent, content):
    """Makes the links of a page in the root relative to docs/project/."""
    if path.parent == pathlib.Path(".."):
        text = re.sub(r"\]\(docs/", "](../", content[0])
        content[0] = re.sub(r"\]\(([A-Z]+)\.md", lambda match: f"]({match[1].lower()}.md", text)


def setup(app):
    app.connect("source-read", mend_page)
    app.connect("include-read", mend_included)
    return {"parallel_read_safe": True}
