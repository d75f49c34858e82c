"""A directive that draws models: `model-diagram`. The drawings are made from the layers of the built models.

The arguments are the panels of a figure: a function such as `ViTB16` or a name of published weights such as
`B/14@dinov2` for a whole model, and `ViTB16:encoder_block_0` for the inside of one of its layers.
"""

import dataclasses
import functools

import model_svg
from docutils import nodes
from docutils.parsers.rst import directives
from model_rows import build, inner_rows, model_rows
from model_tables import depend_on_models, linked
from sphinx.util.docutils import SphinxDirective


class ModelDiagram(SphinxDirective):
    """Draws a figure. The content of the directive is its caption."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {"highlight": directives.unchanged, "parallel": directives.flag}  # noqa: RUF012

    def run(self):
        depend_on_models(self.env)
        highlighted = set(self.options.get("highlight", "").split())
        panels = [_panel(panel, "parallel" in self.options) for panel in self.arguments[0].split()]
        if unknown := highlighted - {row.name for _, rows, _ in panels for row in rows}:
            raise self.error(f"There is nothing in the diagram to highlight with the names {', '.join(unknown)}")
        drawings = [
            draw([dataclasses.replace(row, is_highlighted=row.name in highlighted) for row in rows], *options)
            for draw, rows, options in panels
        ]
        figure = nodes.container(classes=["model-diagram"])
        figure += nodes.raw("", f'<div class="model-panels">{"".join(drawings)}</div>', format="html")
        caption = nodes.container(classes=["model-caption"])
        caption += self.parse_text_to_nodes(linked("\n".join(self.content), self.env.docname))
        return [figure, caption]


def _panel(panel, is_parallel):
    """(function that draws a panel, its rows, the function's other arguments)"""
    name, _, layer = panel.partition(":")
    model = build(name)
    if not layer:
        return functools.partial(model_svg.model_panel, name), model_rows(model, is_parallel), ()
    rows, residuals = inner_rows(model.get_layer(layer))
    return functools.partial(model_svg.inner_panel, name, layer), rows, (residuals,)


def setup(app):
    app.add_directive("model-diagram", ModelDiagram)
    app.add_css_file("diagrams.css")
    return {"parallel_read_safe": True}
