"""Configuration of the documentation site: `make docs` builds it into docs/_build/html."""

import configparser
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_extensions")]
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["PYTHONPATH"] = str(ROOT)  # For the kernels that run the notebooks.

import keras_vit  # noqa: E402

settings = configparser.ConfigParser()
settings.read(ROOT / "setup.cfg")
# The project's address, or "" as long as it has none. Links to the source and to Colab follow from it.
address = settings["metadata"].get("url", "").rstrip("/")

project = "keras_vit"
author = "the keras_vit authors"
copyright = author
version = release = keras_vit.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "api_pages",
    "repository_links",
    "model_tables",
    "model_diagrams",
    "notebooks",
]
exclude_patterns = ["_build", "_extensions"]
suppress_warnings = ["config.cache"]  # Settings that are functions or modules cannot be cached.

# Markdown. Links inside a page use the headings' anchors, as on GitHub.
myst_enable_extensions = ["attrs_block", "colon_fence", "dollarmath"]
myst_heading_anchors = 4

# A notebook runs again when its cells have changed, not when the package or the weights have.
nb_execution_mode = "cache"
nb_execution_timeout = 600  # Seconds per cell, for a machine that does other work too.
nb_execution_raise_on_error = True
nb_merge_streams = True

# Docstrings have Google's sections and Markdown's single backticks, which api_pages turns into links.
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Call arguments", "params_style")]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"keras_vit {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["table_search.js"]
html_show_copyright = html_show_sphinx = False
if address:
    html_theme_options = {"source_repository": address, "source_branch": "main", "source_directory": "docs/"}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
