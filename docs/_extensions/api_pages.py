"""Writes one page for each public name into docs/api/, before Sphinx reads the pages. Docstrings are their contents."""

import ast
import dataclasses
import inspect
import pathlib
import re

from sphinx.pycode import ModuleAnalyzer

import keras_vit
from keras_vit.analysis import plots
from keras_vit.models import axial, axial_resnet, bit_resnet, dense, hybrid, resnet, visual_transformer, vit, vt_fpn
from keras_vit.text import client, tokenizers

FOLDER = pathlib.Path(__file__).parents[1] / "api"

# {title: {module: names}}
SECTIONS = {
    "Models": {"keras_vit": ["ViT", "ViTConfig", "RotaryConfig", "StemConfig", "ConvStemConfig", "VARIANTS"]},
    "Weights": {
        "keras_vit": [
            "from_pretrained",
            "load_weights",
            "LoadReport",
            "save_weights",
            "list_weights",
            "describe",
            "Evaluation",
            "LicenceWarning",
        ]
    },
    "Images and classes": {
        "keras_vit": [
            *("preprocess_input", "Preprocessing", "naflex_model", "naflex_inputs"),
            *("decode_predictions", "Output", "set_output"),
        ]
    },
    "Training": {
        "keras_vit": ["freeze", "initialize_attention", "rematerialize", "profile"],
        "keras_vit.pretraining": keras_vit.pretraining.__all__,
    },
    "Analysis": {
        "keras_vit": [
            *("features", "nearest_neighbours", "attention_maps", "attention_rollout", "query_attention"),
            *("mean_attention_distance", "attention_entropy", "local_attention_ratio"),
            *("embedding_filters", "position_similarity"),
            *("token_maps", "token_lineage", "token_entropy", "foreground_share"),
        ],
        "keras_vit.analysis.plots": [name for name in vars(plots) if name.startswith("plot_")],
    },
    "Export": {"keras_vit": ["export_saved_model", "export_model", "export_image_text_model"]},
    "Masks and depth": {"keras_vit": [*dense.__all__, "class_scores"], "keras_vit.heads": keras_vit.heads.__all__},
    "Images and texts": {
        "keras_vit": ["ImageTextModel", "TextConfig"],
        "keras_vit.text.tokenizers": ["Tokenizer"],
        "keras_vit.text.client": ["Client"],
    },
    "Vision Transformers": {"keras_vit": [name for name in vit.__all__ if name != "ViT"]},
    "Hybrids": {"keras_vit": hybrid.__all__},
    "Axial models": {"keras_vit": [*axial.__all__, *axial_resnet.__all__]},
    "ResNets": {"keras_vit": [*resnet.__all__, *bit_resnet.__all__]},
    "Visual Transformers": {"keras_vit": visual_transformer.__all__},
    "Semantic segmentation": {"keras_vit": vt_fpn.__all__},
    "Baselines": {"keras_vit.baselines": keras_vit.baselines.__all__},
    "Layers": {"keras_vit.layers": sorted(keras_vit.layers.__all__)},
}
_MODULES = {module.__name__: module for module in (keras_vit, keras_vit.pretraining, keras_vit.layers, plots)} | {
    "keras_vit.baselines": keras_vit.baselines,
    "keras_vit.heads": keras_vit.heads,
    "keras_vit.text.client": client,
    "keras_vit.text.tokenizers": tokenizers,
}
_VARIANTS = "The published variants of Vision Transformers: a dictionary from names to configs."
_SUBMODULES = {"baselines", "heads", "layers", "pretraining"}  # Public names of keras_vit that have pages of their own.


def public_objects():
    """{dotted name: object} for all names with a page, in the order of the sections."""
    return {
        f"{module}.{name}": getattr(_MODULES[module], name)
        for modules in SECTIONS.values()
        for module, names in modules.items()
        for name in names
    }


def write_pages(app):
    """Writes the pages. Raises an error if a public name is in no section."""
    objects = public_objects()
    public = {f"keras_vit.{name}" for name in keras_vit.__all__ if name not in _SUBMODULES}
    if missing := sorted(public - set(objects)):
        raise ValueError(f"No section of {__name__}.SECTIONS lists these public names: {', '.join(missing)}")
    files = page_names(objects)
    pages = {files[name]: _page(name, value) for name, value in objects.items()}
    for title in SECTIONS:
        pages[_slug(title)] = _section(title, objects, files)
    pages["index"] = _index(objects, files)
    for page, text in pages.items():
        _write(page, text)
    for path in FOLDER.glob("*.md"):
        if path.stem not in pages:
            path.unlink()


def page_names(objects):
    """{dotted name: name of the page}. Names that differ in upper and lower case only get different pages."""
    files = {}
    for name in objects:
        page = name.removeprefix("keras_vit.")
        while page.lower() in {other.lower() for other in files.values()}:
            page += "_"
        files[name] = page
    return files


def _write(page, text):
    """Writes a page if its text is new. Otherwise Sphinx would read it again."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{page}.md"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _names(title):
    return [f"{module}.{name}" for module, names in SECTIONS[title].items() for name in names]


def _slug(title):
    return "section-" + title.lower().replace(" ", "-")


def _index(objects, files):
    lines = [
        "# API",
        "",
        "Each name has a page with its arguments, results and errors, an example, and its source.",
        "",
    ]
    for title in SECTIONS:
        links = ", ".join(f"[`{name.rpartition('.')[2]}`]({files[name]}.md)" for name in _names(title))
        lines += [f"**[{title}]({_slug(title)}.md)**: {links}", ""]
    return "\n".join([*lines, *_toctree(_slug(title) for title in SECTIONS)])


def _section(title, objects, files):
    lines = [f"# {title}", "", "| name | description |", "|---|---|"]
    for name in _names(title):
        lines += [f"| [`{name.rpartition('.')[2]}`]({files[name]}.md) | {_summary(objects[name])} |"]
    return "\n".join([*lines, "", *_toctree(files[name] for name in _names(title))])


def _toctree(pages):
    return ["```{toctree}", ":hidden:", "", *pages, "```", ""]


def _summary(value):
    """The first sentence of a docstring."""
    if not callable(value):
        return _VARIANTS
    first = inspect.getdoc(value).split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return re.split(r"(?<=[.])\s", first)[0]


def _page(name, value):
    if not callable(value):
        directive = [f".. py:data:: {name}", "", f"   {_VARIANTS}", "", "   >>> import keras_vit"]
        directive += ['   >>> keras_vit.VARIANTS["B/16"].hidden_dim', "   768"]
    else:
        directive = [f".. auto{'class' if inspect.isclass(value) else 'function'}:: {name}"]
    return "\n".join([f"# {name.rpartition('.')[2]}", "", "```{eval-rst}", *directive, "```", ""])


def show_signature(app, what, name, value, options, signature, returned):
    """Shows the arguments of a layer. Keras hides them behind a `__new__` that takes any arguments."""
    if not inspect.isclass(value) or "__init__" not in vars(value) or dataclasses.is_dataclass(value):
        return None
    parameters = [p for p in inspect.signature(value.__init__).parameters.values() if p.name != "self"]
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters])), None


def find_source(app, module):
    """Finds the definitions in a module. Assignments count too, because factories of published sizes are assigned."""
    analyzer = ModuleAnalyzer.for_module(module)
    analyzer.find_tags()
    tags = dict(analyzer.tags)
    for node in ast.parse(analyzer.code).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names = (name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name))
            tags |= dict.fromkeys(names, ("def", node.lineno, node.end_lineno))
    return analyzer.code, tags


def link_names(app, what, name, value, options, lines):
    """Turns Markdown's single backticks into links to public names, and otherwise into code."""

    def mark(match):
        target = _TARGETS.get(match[1])
        return f":py:obj:`{match[1]} <{target}>`" if target else f"``{match[1]}``"

    lines[:] = [re.sub(r"(?<![`:])`([^`]+)`(?!`)", mark, line) for line in lines]


# {name as docstrings write it: dotted name}
_TARGETS = {name.rpartition(".")[2]: name for name in public_objects()} | {name: name for name in public_objects()}


def setup(app):
    app.connect("builder-inited", write_pages)
    app.connect("viewcode-find-source", find_source)
    app.connect("autodoc-process-signature", show_signature)
    # Before napoleon, whose own markup must stay.
    app.connect("autodoc-process-docstring", link_names, priority=400)
    return {"parallel_read_safe": True}
