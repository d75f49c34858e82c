"""The statements in the README are true."""

import ast
import dataclasses
import inspect
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit
from benchmarks.models import table, vt_table
from keras_vit.weights.catalogue import get_entry
from tests.test_case import randomize
from training import recipes
from training.__main__ import main
from training.studies import papers as studies

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


# Examples after this heading need a server: export/clients_test.py.
EXAMPLES = re.findall(r"```python\n(.*?)```", README.split("\n## Serving\n")[0], re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("printed", [vt_table, table])
def test_tables_of_models_are_what_their_command_prints(printed):
    assert printed() in README


def _named(node):
    """The object that a syntax node names, such as `keras_vit.ViT`, or `None`."""
    if isinstance(node, ast.Name):
        return {"keras": keras, "keras_vit": keras_vit}.get(node.id)
    owner = _named(node.value) if isinstance(node, ast.Attribute) else None
    return None if owner is None else getattr(owner, node.attr)


@pytest.mark.parametrize("code", EXAMPLES)
def test_names_and_arguments_in_python_examples(code):
    """Each name exists and accepts these arguments. test_python_examples_run runs the examples."""
    assert len(code.splitlines()) <= 10
    nodes = list(ast.walk(ast.parse(code)))
    calls = [(_named(node.func), node) for node in nodes if isinstance(node, ast.Call)]
    calls = [(function, node) for function, node in calls if function is not None]
    assert calls
    assert all(_named(node) is not None for node in nodes if isinstance(node, ast.Attribute) and _named(node.value))
    config = {field.name for field in dataclasses.fields(keras_vit.ViTConfig)}
    for function, node in calls:
        keywords = {keyword.arg: None for keyword in node.keywords}
        bound = inspect.signature(function).bind(*[None] * len(node.args), **keywords)
        kinds = {parameter.kind: name for name, parameter in bound.signature.parameters.items()}
        others = bound.arguments.get(kinds.get(inspect.Parameter.VAR_KEYWORD), {})
        assert set(others) <= config | set(inspect.signature(keras_vit.ViT).parameters), function


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A working folder with a photograph, and a file in the cache in place of the published one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    address = get_entry("Ti/16@augreg-i21k-i1k-224").url.removeprefix("https://")
    (tmp_path / "cache" / address).parent.mkdir(parents=True)
    keras_vit.save_weights(randomize(keras_vit.ViTTi16(), scale=0.02), tmp_path / "cache" / address, "google")
    keras.utils.save_img("photograph.jpg", np.random.default_rng(0).integers(0, 256, (60, 80, 3)))


@pytest.mark.slow
def test_python_examples_run(published, capsys):
    import tensorflow as tf

    pixels = np.random.default_rng(1).integers(0, 256, (2, 224, 224, 3)).astype("float32")
    given = {
        "photographs": tf.data.Dataset.from_tensors((pixels, np.array([3, 7]))),
        "class_names": list("abcdefghij"),
        "unlabelled": pixels,
        "pixels": pixels,
    }
    for code in EXAMPLES:
        exec(compile(code, "README.md", "exec"), dict(given))
    printed = capsys.readouterr().out
    assert re.search(r"^[\w ]+: \d+\.\d%$", printed, re.MULTILINE)
    assert "14 x 14 positions resampled to 20 x 16 (align_corners)" in printed
    assert "200 {} {}" in printed


def test_commands_are_accepted_as_they_stand(capsys):
    commands = re.findall(r"^python -m training train (.*)$", README, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        arguments = command.split()
        assert arguments[0] in recipes.NAMES
        assert not main(["train", *arguments, *([] if "--show" in arguments else ["--show"])])


def test_all_studies_are_named():
    [line] = re.findall(r"^python -m training study (.*)$", README, re.MULTILINE)
    assert sorted(re.sub(" *# or", ",", line).split(", ")) == sorted(studies.NAMES)


def test_files_that_are_linked_or_drawn_exist():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert links
    assert all((ROOT / link.partition("#")[0]).exists() for link in links)
    [tree] = re.findall(r"```\n(keras_vit/ .*?)```", README, re.DOTALL)
    folder = pathlib.Path()
    for line in tree.splitlines():
        name = line.split()[0]
        folder = pathlib.Path(name) if not line.startswith(" ") else folder
        assert (ROOT / (name if not line.startswith(" ") else folder / name)).exists(), line
