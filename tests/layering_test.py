"""The modules keep to their ranks and budgets, and importing the package costs little."""

import ast
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# A module imports from a lower rank or from its own package.
RANKS = {
    "keras_vit.config": 0,
    "keras_vit.layers": 1,
    "keras_vit.preprocessing": 1,
    "keras_vit.encoder": 2,
    "keras_vit.heads": 2,
    "keras_vit.weights": 2,
    "keras_vit.label_spaces": 3,
    "keras_vit.models": 3,
    "keras_vit.cost": 4,
    "keras_vit.export": 4,
    "keras_vit": 5,
    "training": 6,
    "benchmarks": 7,
    "tests": 8,
}
# What may be imported besides, up to each rank; the standard library always.
EXTERNAL = {0: {"numpy"}, 4: {"numpy", "keras"}}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_FACTORY_LINES = 120
MAX_ARGUMENTS = 7
# Carries a model's whole protocol through files, like a config.
MANY_ARGUMENTS = {"Preprocessing"}


@functools.cache
def _modules():
    """{module name: (path, syntax tree)} of all Python files of the checkout."""
    found = {}
    for folder in ("keras_vit", "training", "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path, ast.parse(path.read_text())
    return found


def _room(name):
    """The longest prefix of a module's name that has a rank."""
    parts = name.split(".")
    return next((room for n in range(len(parts), 0, -1) if (room := ".".join(parts[:n])) in RANKS), None)


def _imports(tree, module_names=frozenset()):
    """Names of the modules that a tree imports; `from package import module` counts as the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in module_names else node.module


def _is_own(name):
    return name.split(".")[0] in {room.split(".")[0] for room in RANKS}


def test_every_module_has_a_rank():
    package = {name for name in _modules() if name.startswith("keras_vit.")}
    assert {_room(name) for name in package} == {room for room in RANKS if room.startswith("keras_vit.")}


def test_modules_import_from_lower_ranks_only():
    wrong = [
        f"{name} (rank {RANKS[_room(name)]}) imports {imported} (rank {RANKS[_room(imported)]})"
        for name, (_, tree) in _modules().items()
        for imported in _imports(tree, _modules().keys())
        if _is_own(imported) and _room(imported) != _room(name) and RANKS[_room(imported)] >= RANKS[_room(name)]
    ]
    assert not wrong


def test_the_library_imports_keras_and_numpy_only():
    wrong = []
    for name, (_, tree) in _modules().items():
        rank = RANKS[_room(name)]
        if rank > 5 or name == "keras_vit.export":
            continue
        allowed = EXTERNAL[0] if rank == 0 else EXTERNAL[4]
        others = {imported.split(".")[0] for imported in _imports(tree) if not _is_own(imported)}
        wrong += [f"{name} imports {other}" for other in others - allowed - sys.stdlib_module_names]
    assert not wrong


def test_tensorflow_is_imported_in_functions_of_the_export_only():
    _, tree = _modules()["keras_vit.export"]
    outside = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
    at_import = {name.split(".")[0] for node in outside for name in _imports(node)}
    assert at_import - sys.stdlib_module_names == {"keras", "keras_vit"}
    assert {name.split(".")[0] for name in _imports(tree)} - sys.stdlib_module_names == {
        "keras",
        "keras_vit",
        "tensorflow",
    }


_MODULES_AFTER_IMPORT = """
import json, sys, time
start = time.perf_counter()
import keras
middle = time.perf_counter()
before = set(sys.modules)
import keras_vit
print(json.dumps([sorted(set(sys.modules) - before), sorted(before), middle - start, time.perf_counter() - middle]))
"""


@pytest.mark.parametrize("backend", ["jax"])
def test_import_brings_nothing_but_the_package(backend):
    result = subprocess.run(
        [sys.executable, "-c", _MODULES_AFTER_IMPORT],
        env=os.environ | {"KERAS_BACKEND": backend},
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        check=True,
    )
    added, before, keras_seconds, seconds = json.loads(result.stdout)
    assert "keras_vit.models.vit" in added
    foreign = {name.split(".")[0] for name in added} - sys.stdlib_module_names - {"keras_vit"}
    assert not foreign
    assert "tensorflow" not in before
    assert not {"training", "tensorflow", "tensorflow_datasets", "matplotlib"} & set(added)
    # Measured: 0.05 of it. The list above is the strict test; this one sees work done at import.
    assert seconds < 0.5 * keras_seconds


def test_files_are_short():
    lengths = {name: len(path.read_text().splitlines()) for name, (path, _) in _modules().items()}
    assert not {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}


def _functions():
    for name, (_, tree) in _modules().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield name, node


def test_functions_are_short():
    """Lines without the docstring."""
    too_long = {}
    for name, node in _functions():
        length = node.end_lineno - node.lineno + 1
        first = node.body[0]
        if ast.get_docstring(node):
            length -= first.end_lineno - first.lineno + 1
        may_be_long = name.startswith("keras_vit.models.") or name == "training.train"
        if length > (MAX_FACTORY_LINES if may_be_long else MAX_FUNCTION_LINES):
            too_long[f"{name}.{node.name}"] = length
    assert not too_long


def test_layers_have_few_arguments():
    many = {}
    for name, (_, tree) in _modules().items():
        for layer in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
            for node in layer.body:
                if name.startswith("keras_vit.") and isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    many[layer.name] = len(node.args.args + node.args.kwonlyargs) - 1
    assert "EncoderBlock" in many
    assert {layer for layer, count in many.items() if count > MAX_ARGUMENTS} == MANY_ARGUMENTS


def test_one_public_class_a_layer_file():
    for name, (_, tree) in _modules().items():
        if name.startswith("keras_vit.layers."):
            classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
            assert len([cls for cls in classes if not cls.startswith("_")]) == 1, name
