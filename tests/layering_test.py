"""Modules respect their ranks, code is not split without need, and importing the package is cheap."""

import ast
import collections
import functools
import graphlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# From the lowest rank up. A module may import from a lower rank or from its own room.
ROOMS = (
    ("keras_vit.atomic_files", "keras_vit.checks", "keras_vit.licences", "keras_vit.resampling"),
    ("keras_vit.architectures",),
    ("keras_vit.graph", "keras_vit.layers.base", "keras_vit.layers.ops", "keras_vit.preprocessing"),
    ("keras_vit.layers.regularization",),
    ("keras_vit.layers.convolutional", "keras_vit.layers.positions"),
    ("keras_vit.layers.text", "keras_vit.layers.transformer", "keras_vit.layers.visual_tokens"),
    ("keras_vit.layers",),
    ("keras_vit.data", "keras_vit.outputs", "keras_vit.trunks"),
    (
        *("keras_vit.weights.catalogue", "keras_vit.weights.containers", "keras_vit.weights.paths"),
        "keras_vit.weights.sources",
    ),
    ("keras_vit.weights.adapt", "keras_vit.weights.checkpoint"),
    ("keras_vit.weights.formats",),
    ("keras_vit.weights",),
    ("keras_vit.inference",),
    ("keras_vit.encoder", "keras_vit.label_spaces"),
    ("keras_vit.heads",),
    ("keras_vit.models",),
    ("keras_vit.analysis", "keras_vit.pretrained", "keras_vit.pretraining"),
    ("keras_vit.text",),
    ("keras_vit.export.answers", "keras_vit.export.calibration", "keras_vit.export.messages"),
    ("keras_vit.export.signatures",),
    ("keras_vit.export.formats",),
    ("keras_vit.export.int8",),
    ("keras_vit.export",),
    ("keras_vit.export.image_text",),
    ("keras_vit",),
    ("training", "training.errors"),
    ("training.files",),
    ("training.recipe",),
    ("training.recipes",),
    ("training.data.images", "training.data.masks", "training.data.sources"),
    ("training.data.contents", "training.data.samples"),
    ("training.data.dataset", "training.data.subsets"),
    ("training.data.augment", "training.data.sets"),
    ("training.data",),
    ("training.runs",),
    ("training.evaluation",),
    ("training.reports",),
    ("training.tasks",),
    ("training.engine",),
    ("training.planning", "training.inspection"),
    ("training.studies",),
    ("training.studies.papers",),
    ("training.studies.running",),
    ("training.cli",),
    ("training.__main__",),
    ("benchmarks",),
    ("tests",),
)
RANKS = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}
# Packages that a module of the library may import in addition to NumPy, Keras (above the config) and the standard
# library. They are imported inside functions, so that only callers of these functions need them.
IN_FUNCTIONS = {
    "keras_vit.analysis.plots": {"matplotlib"},
    "keras_vit.atomic_files": {"filelock"},
    "keras_vit.data.archives": {"tensorflow", "tensorflow_datasets"},
    "keras_vit.data.table": {"pyarrow"},
    "keras_vit.export.answers": {"tensorflow"},
    "keras_vit.export.formats.exporting": {"tensorflow"},
    "keras_vit.export.formats.litert": {"ai_edge_litert", "tensorflow"},
    "keras_vit.export.formats.onnx": {"onnx", "onnxruntime", "tf2onnx"},
    "keras_vit.export.formats.openvino": {"openvino"},
    "keras_vit.export.int8.litert": {"ai_edge_litert"},
    "keras_vit.export.int8.onnx": {"onnx", "onnxruntime"},
    "keras_vit.export.int8.openvino": {"nncf", "openvino"},
    "keras_vit.export.parity": {"jax", "tensorflow"},
    "keras_vit.inference": {"jax", "pyarrow", "tensorflow"},
    "keras_vit.layers.ops.attention_kernels": {"tensorflow"},
    "keras_vit.layers.ops.fixed_seed": {"tensorflow"},
    "keras_vit.layers.ops.resizing": {"tensorflow"},
    "keras_vit.layers.transformer.naflex_patches": {"tensorflow"},
    "keras_vit.models.step_variables": {"tensorflow"},
    "keras_vit.text.contrastive": {"tensorflow"},
    "keras_vit.text.tokenizers": {"ftfy", "sentencepiece", "tokenizers"},
    "keras_vit.weights.containers.h5": {"h5py"},
    "keras_vit.weights.containers.pth": {"torch"},
    "keras_vit.weights.containers.safetensors": {"safetensors"},
    "keras_vit.weights.model_cards": {"huggingface_hub"},
    "keras_vit.weights.sources.fetch": {"filelock", "huggingface_hub"},
}
# Modules that compute with TensorFlow import it at the top. Other modules of the library import these modules inside
# functions only.
TENSORFLOW_MODULES = {
    "keras_vit.data.decoding",
    "keras_vit.export.functions",
    "keras_vit.export.image_text.writing",
    "keras_vit.export.in_parts",
    "keras_vit.export.smaller_graph",
    "keras_vit.export.writing",
    "keras_vit.data.headers",
    "keras_vit.data.markers",
}
MAX_ARGUMENTS = 7
MANY_ARGUMENTS = {
    "Preprocessing",  # It stores everything about a model's images in files, like a config.
    "MultiHeadSelfAttention",  # Each special kind of attention is one argument (docs/decisions/0022).
    "MergingEncoderBlock",  # It has the arguments of `EncoderBlock`, and one more.
}


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
    """Longest prefix of a module's name that has a rank."""
    parts = name.split(".")
    return next((room for n in range(len(parts), 0, -1) if (room := ".".join(parts[:n])) in RANKS), None)


@functools.cache
def _nodes(tree):
    """All statements of a syntax tree. `ast.walk` would also list their expressions, which takes much longer."""
    found = [tree]
    for node in found:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, field, [])
    return found


def _imports(tree, module_names=frozenset()):
    """Names of the modules that a tree imports. `from package import module` counts as the module."""
    for node in _nodes(tree):
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
    packages = {name for name in _modules() if name.startswith(("keras_vit.", "training."))}
    assert {_room(name) for name in packages} == {
        room for room in RANKS if room.startswith(("keras_vit.", "training."))
    }
    assert set(IN_FUNCTIONS) <= packages


def test_modules_import_from_lower_ranks_only():
    wrong = [
        f"{name} (rank {RANKS[_room(name)]}) imports {imported} (rank {RANKS[_room(imported)]})"
        for name, (_, tree) in _modules().items()
        for imported in _imports(tree, _modules().keys())
        if _is_own(imported) and _room(imported) != _room(name) and RANKS[_room(imported)] >= RANKS[_room(name)]
    ]
    assert not wrong


def test_modules_import_each_other_in_one_direction():
    """Imports within a folder and inside functions count too."""
    imports = {
        name: {imported for imported in _imports(tree, _modules().keys()) if imported in _modules()} - {name}
        for name, (_, tree) in _modules().items()
        if not name.startswith("tests.")
    }
    graphlib.TopologicalSorter(imports).prepare()  # Raises a CycleError that names the modules.


def test_modules_are_found_by_name_where_a_user_names_them():
    """`importlib.import_module` hides imports from the tests above, so its users are listed."""
    hidden = {name for name, (path, _) in _modules().items() if "import_module(" in path.read_text()}
    hidden = {name for name in hidden if not name.startswith("tests.")}
    assert hidden == {
        "benchmarks.latency",  # External packages.
        "keras_vit.export.elsewhere",
        "training.recipes",
        "training.studies.papers",
    }


def test_folders_are_seen_at_a_glance():
    for folder, most in (("keras_vit", 24), ("training", 20)):
        assert len([path for path in (ROOT / folder).iterdir() if path.name != "__pycache__"]) <= most, folder


def test_the_library_imports_keras_and_numpy_only():
    """Other packages are imported inside the functions of the modules in `IN_FUNCTIONS`, or by `TENSORFLOW_MODULES`."""
    outside, inside = {}, {}
    for name, (_, tree) in _modules().items():
        if name.split(".")[0] == "keras_vit":
            allowed = {"numpy"} if RANKS[_room(name)] <= RANKS["keras_vit.architectures"] else {"numpy", "keras"}
            nodes = [part for node in tree.body for part in (node.body if isinstance(node, ast.ClassDef) else [node])]
            for node in nodes:
                found = inside if isinstance(node, ast.FunctionDef) else outside
                packages = {imported.split(".")[0] for imported in _imports(node) if not _is_own(imported)}
                found[name] = found.get(name, set()) | (packages - sys.stdlib_module_names - allowed)
    assert {name: packages for name, packages in outside.items() if packages} == {
        name: {"tensorflow"} for name in TENSORFLOW_MODULES
    }
    assert {name: packages for name, packages in inside.items() if packages} == IN_FUNCTIONS


def test_modules_with_tensorflow_are_imported_inside_functions():
    wrong = {
        name: imported
        for name, (_, tree) in _modules().items()
        if name.split(".")[0] == "keras_vit" and name not in TENSORFLOW_MODULES
        for node in tree.body
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef))
        for imported in _imports(node, _modules().keys())
        if imported in TENSORFLOW_MODULES
    }
    assert not wrong


_MODULES_AFTER_IMPORT = """
import json, sys, time
start = time.perf_counter()
import keras
middle = time.perf_counter()
before = set(sys.modules)
import keras_vit
print(json.dumps([sorted(set(sys.modules) - before), sorted(before), middle - start, time.perf_counter() - middle]))
"""


@pytest.mark.slow
def test_import_brings_nothing_but_the_package():
    result = subprocess.run(
        [sys.executable, "-c", _MODULES_AFTER_IMPORT],
        env=os.environ | {"KERAS_BACKEND": "jax"},
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
    # Measured: 0.05 of it. The check above is strict. This check detects expensive work at import.
    assert seconds < 0.5 * keras_seconds


# A limit on lines invites splitting. These limits count what splitting costs. They may only fall.
MOST_WITH_ONE_CALLER = 0.446  # 649 of 1,458
"""Share of the functions (not methods) outside `__all__` whose name occurs once, except in their `def`."""
MOST_SMALL_MODULES = 0.068  # 25 of 370
"""Share of the modules with under `FEW_LINES` lines. `SEPARATE` lists rooms whose modules are not counted as small."""
FEW_LINES = 60
SEPARATE = (".cli.", ".formats.", ".layers.", ".papers.", ".recipes.")
MOST_IMPORTS_INSIDE = 36  # layers/convolutional
"""Number of imports of a module by another module of its folder, in the folder with the most of them."""


def _packages():
    """Modules of both packages: {name: (path, syntax tree)}"""
    return {name: each for name, each in _modules().items() if name.split(".")[0] in ("keras_vit", "training")}


def test_few_functions_have_one_caller():
    """The uses of a private name are counted in its module, those of other names in both packages."""
    uses, functions = collections.Counter(), []
    for name, (_, tree) in _packages().items():
        for node in ast.walk(tree):
            used = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
            uses.update(((name, used), used))
        functions += [(name, node.name) for node in tree.body if isinstance(node, ast.FunctionDef)]
    public = {text for _, tree in _packages().values() for text in _exported(tree)}
    single = [
        f"{name}.{function}"
        for name, function in functions
        if function not in public and uses[(name, function) if function.startswith("_") else function] == 1
    ]
    assert len(single) / len(functions) <= MOST_WITH_ONE_CALLER, single


def _exported(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            yield from (each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant))


def test_few_modules_are_small():
    small = [
        name
        for name, (path, _) in _packages().items()
        if path.name != "__init__.py"
        and not any(room in f"{name}." for room in SEPARATE)
        and len(path.read_text().splitlines()) < FEW_LINES
    ]
    assert len(small) / len(_packages()) <= MOST_SMALL_MODULES, small


def test_few_imports_inside_a_folder():
    counts = collections.Counter()
    for name, (path, tree) in _packages().items():
        folder = name if path.name == "__init__.py" else name.rpartition(".")[0]
        imported = {each for each in _imports(tree, _modules().keys()) if each in _modules()} - {name}
        counts[folder] += sum(each.rpartition(".")[0] == folder for each in imported)
    assert counts.most_common(1)[0][1] <= MOST_IMPORTS_INSIDE, counts.most_common(5)


def test_layers_have_few_arguments():
    many = {}
    for name, (_, tree) in _modules().items():
        for layer in [node for node in _nodes(tree) if isinstance(node, ast.ClassDef)]:
            for node in layer.body:
                if name.startswith("keras_vit.") and isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    many[layer.name] = len(node.args.args + node.args.kwonlyargs) - 1
    assert "EncoderBlock" in many
    assert {layer for layer, count in many.items() if count > MAX_ARGUMENTS} == MANY_ARGUMENTS


def test_one_public_class_a_layer_file():
    for name, (_, tree) in _modules().items():
        if name.startswith("keras_vit.layers."):
            classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
            assert len([cls for cls in classes if not cls.startswith("_")]) <= 1, name
