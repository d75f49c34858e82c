"""Directives for the pages of models: tables of variants and of published weights, made when the site is built."""

import pathlib
import re

import api_pages
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

import keras_vit
from benchmarks import models
from keras_vit.weights.catalogue import ENTRIES

_SOURCES = sorted(pathlib.Path(keras_vit.__file__).parent.rglob("*.py"))
_WEIGHT_COLUMNS = ("name", "pixels", "classes", "top-1", "measured by", "licence")
_ENDINGS = re.compile(r"-(original|huggingface)$")  # Of names of copies in other layouts.


class ModelVariants(SphinxDirective):
    """Shows tables of `benchmarks.models.TABLES`. The argument is the name of a table."""

    required_arguments = 1

    def run(self):
        [name] = self.arguments
        if name not in models.TABLES:
            raise self.error(f"{name!r} is not a table of benchmarks.models. Accepted: {', '.join(models.TABLES)}")
        depend_on_models(self.env)
        return self.parse_text_to_nodes(linked(models.TABLES[name](), self.env.docname))


class ModelWeights(SphinxDirective):
    """Shows the published weights of some papers. The arguments are arXiv identifiers."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"stem": directives.flag}  # noqa: RUF012

    def run(self):
        entries = entries_of(self.arguments[0].split(), "stem" in self.options)
        if not entries:
            raise self.error(f"No published weights have the papers {self.arguments[0]}.")
        depend_on_models(self.env)
        return self.parse_text_to_nodes(weights_table(entries))


def entries_of(papers, has_stem):
    """The catalogue entries of papers, of hybrids (with a convolutional stem) or of all other models."""
    return [entry for entry in ENTRIES.values() if entry.paper in papers and ("+" in entry.variant) == has_stem]


def weights_table(entries):
    """A table of catalogue entries in Markdown. Copies of the same weights in other layouts share a row."""
    rows = {}
    for entry in entries:
        # Files without classes contain no head.
        top1, measured_by = (f"{entry.top1:.2f}", entry.top1_protocol) if entry.top1 else ("", "")
        facts = (entry.image_size, entry.classes or "none", top1, measured_by, entry.licence)
        rows.setdefault((_ENDINGS.sub("", entry.name), facts), []).append(entry.name)
    has_copies = any(len(names) > 1 for names in rows.values())
    columns = (*_WEIGHT_COLUMNS, "copies in other layouts") if has_copies else _WEIGHT_COLUMNS
    lines = [columns, ["--:" if name in ("pixels", "classes", "top-1") else "---" for name in columns]]
    for (_, facts), (name, *copies) in rows.items():
        endings = ", ".join(f"`{_ENDINGS.search(copy)[0]}`" for copy in copies)
        lines.append((f"`{name}`", *facts, *([endings] if has_copies else [])))
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


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
    for path in [*_SOURCES, pathlib.Path(models.__file__), *sorted(pathlib.Path(__file__).parent.glob("model_*.py"))]:
        env.note_dependency(str(path))


def setup(app):
    app.add_directive("model-variants", ModelVariants)
    app.add_directive("model-weights", ModelWeights)
    return {"parallel_read_safe": True}
