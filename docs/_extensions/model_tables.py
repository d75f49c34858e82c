"""Directives for the pages of models: tables of variants and of published weights, made when the site is built."""

import pathlib
import re

import api_pages
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

import keras_vit
from benchmarks import model_weights, models

_SOURCES = sorted(pathlib.Path(keras_vit.__file__).parent.rglob("*.py"))


class ModelVariants(SphinxDirective):
    """Shows tables of `benchmarks.models.TABLES`. The argument is the name of a table."""

    required_arguments = 1

    def run(self):
        [name] = self.arguments
        if name not in models.TABLES:
            raise self.error(f"{name!r} is not a table of benchmarks.models. Accepted: {', '.join(models.TABLES)}")
        depend_on_models(self.env)
        return model_table(self, models.TABLES[name]())


class ModelWeights(SphinxDirective):
    """Shows the published weights of some papers. The arguments are arXiv identifiers, an option their kind."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = dict.fromkeys(model_weights.KINDS[1:], directives.flag)

    def run(self):
        entries = model_weights.entries_of(self.arguments[0].split(), next(iter(self.options), ""))
        if not entries:
            raise self.error(f"No published weights have the papers {self.arguments[0]}.")
        depend_on_models(self.env)
        return model_table(self, model_weights.table(entries), "weights")


def model_table(directive, text, *classes):
    """A table with a smaller font, from Markdown. Names of public objects become links."""
    container = nodes.container(classes=["model-table", *classes])
    container += directive.parse_text_to_nodes(linked(text, directive.env.docname))
    return [container]


def linked(text, page):
    """Turns names of public objects in backticks into links to their API pages."""
    up = "../" * page.count("/")

    def link(match):
        api_page = _API_PAGES.get(match[1])
        return f"[{match[0]}]({up}api/{api_page}.md)" if api_page else match[0]

    return re.sub(r"`(\w+)`", link, text)


_API_PAGES = {name.rpartition(".")[2]: page for name, page in api_pages.page_names(api_pages.public_objects()).items()}


def depend_on_models(env):
    """Makes Sphinx read the page again when the package or its catalogue have changed."""
    own = [pathlib.Path(module.__file__) for module in (models, model_weights)]
    for path in [*_SOURCES, *own, *sorted(pathlib.Path(__file__).parent.glob("model_*.py"))]:
        env.note_dependency(str(path))


def setup(app):
    app.add_directive("model-variants", ModelVariants)
    app.add_directive("model-weights", ModelWeights)
    return {"parallel_read_safe": True}
