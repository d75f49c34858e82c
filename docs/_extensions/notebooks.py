"""Writes the guides as Jupyter notebooks beside their pages, and links each page to its notebook.

If `setup.cfg` contains the project's address, the pages also have a button for Colab. It expects the site in the branch
`gh-pages` of the repository, where GitHub's pages come from.
"""

import pathlib

import jupytext
from nbformat.v4 import new_code_cell

DOCS = pathlib.Path(__file__).parents[1]
_COLAB = "https://colab.research.google.com/github/{repository}/blob/gh-pages/{page}.ipynb"


def guides():
    """Names of the pages that are notebooks, such as `"guides/fine_tune"`."""
    paths = sorted((DOCS / "guides").glob("*.md"))
    return [f"guides/{path.stem}" for path in paths if "\nkernelspec:\n" in path.read_text(encoding="utf-8")]


def link_notebook(app, page, content):
    """Adds the links to a guide, below its title."""
    if page not in guides():
        return
    links = [f'<a href="{page.rpartition("/")[2]}.ipynb" download>Download this notebook</a>']
    if app.config.address:
        repository = app.config.address.removeprefix("https://github.com/")
        links.append(f'<a href="{_COLAB.format(repository=repository, page=page)}">Open it in Colab</a>')
    head, title, rest = content[0].partition("\n# ")
    name, _, text = rest.partition("\n")
    content[0] = f'{head}{title}{name}\n\n```{{raw}} html\n<p class="notebook-links">{" ".join(links)}</p>\n```\n{text}'


def write_notebooks(app, error):
    """Writes the notebooks. Those for Colab begin with the installation of the package."""
    if error or app.builder.name != "html":
        return
    for page in guides():
        notebook = jupytext.read(DOCS / f"{page}.md")
        if app.config.address:
            package = f"keras-vit-applications[tensorflow] @ git+{app.config.address}"
            notebook.cells.insert(0, new_code_cell(f'%pip install --quiet "{package}" pillow matplotlib'))
        jupytext.write(notebook, pathlib.Path(app.outdir, f"{page}.ipynb"))


def setup(app):
    app.add_config_value("address", "", "html")
    app.connect("source-read", link_notebook)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True}
