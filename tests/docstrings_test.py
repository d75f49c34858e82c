"""Public docstrings describe arguments and return values, and contain an example."""

import ast
import collections
import dataclasses
import inspect
import pickle

import keras

import keras_vit
from keras_vit.analysis import plots

PUBLIC = {name: getattr(room, name) for room in (keras_vit, keras_vit.baselines) for name in room.__all__}
GENERIC_FUNCTIONS = {
    *("AxialResNet", "AxialViT", "BiTResNet", "PanopticFPN", "ResNet", "SelfAttentionNetwork", "VTFPN", "VTResNet"),
    *("DepthEstimator", "Detector", "Segmenter", "ViT"),
}
# Templates write these docstrings, which refer to the general functions for the arguments.
VARIANT_FUNCTIONS = {*keras_vit.models.FACTORIES, *keras_vit.baselines.__all__} - GENERIC_FUNCTIONS
LAYERS = {
    name: getattr(room, name)
    for room in (keras_vit.layers, keras_vit.heads, keras_vit.pretraining)
    for name in room.__all__
} | {name: value for name, value in PUBLIC.items() if inspect.isclass(value) and issubclass(value, keras.layers.Layer)}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
DATA_CLASSES = {name: value for name, value in PUBLIC.items() if dataclasses.is_dataclass(value)}


def _sections(documentation):
    """{title: lines} of the sections of a docstring. A missing section has no lines."""
    sections, title = collections.defaultdict(list), None
    for line in inspect.cleandoc(documentation).splitlines():
        if line.endswith(":") and not line.startswith(" ") and line[0].isupper() and len(line.split()) < 3:
            title = line[:-1]
        elif title:
            sections[title].append(line)
    return sections


def _described(section):
    """Names that a section describes: those before the colons of its entries, such as `a: …` or `a, b: …`."""
    entries = [line for line in section if line.startswith("    ") and not line.startswith("     ")]
    names = (line.split(":")[0].split(", ") for line in entries if ":" in line)
    return {name.strip().lstrip("*") for several in names for name in several}


def _describes(section, function):
    return _described(section) == set(inspect.signature(function).parameters) - {"self", "kwargs"}


def _returns_something(function):
    nodes = ast.walk(ast.parse(inspect.getsource(function)))
    return any(isinstance(node, ast.Return) and node.value is not None for node in nodes)


def _layer(name, layer, sections):
    own = vars(layer)
    yield "Args", "__init__" not in own or _describes(sections["Args"], layer.__init__)
    yield "Call arguments", _describes(sections["Call arguments"], layer.call)
    yield "Returns", any("(B" in line or "(2, " in line or "Same shape" in line for line in sections["Returns"])
    yield "Example", any(line.startswith(">>> ") for line in sections["Example"])
    # The docstring of the class describes them.
    undocumented = [own[method].__doc__ is None for method in ("__init__", "build", "call") if method in own]
    yield "only the class has a docstring", all(undocumented)


def _function(name, function, sections):
    yield "Args", _describes(sections["Args"], function)
    yield "Returns", bool(sections["Returns"]) == _returns_something(function)
    yield "Raises", bool(sections["Raises"])
    yield "Example", any(line.startswith(">>> ") for line in sections["Example"])


def _variant_function(name, function, sections):
    module = "keras_vit.baselines" if name in keras_vit.baselines.__all__ else "keras_vit"
    yield "names a general function", any(f".{generic}(" in function.__doc__ for generic in GENERIC_FUNCTIONS)
    yield "Returns", bool(sections["Returns"])
    yield "Example", any(f" {module}.{name}(" in line for line in sections["Example"])
    yield "can be pickled", pickle.loads(pickle.dumps(function)) is function


def _plot(name, function, sections):
    yield "Args", _describes(sections["Args"], function)
    yield "Returns", bool(sections["Returns"])
    yield "Example", any(f"plots.{name}(" in line for line in sections["Example"])


def _data_class(name, cls, sections):
    yield "Args", _describes(sections["Args"], cls)
    yield "Example", any(line.startswith(">>> ") for line in sections["Example"])


def test_docstrings_are_complete():
    """The message lists what is wrong as `name: section`."""
    kinds = {
        _layer: LAYERS,
        _function: {name: FUNCTIONS[name] for name in set(FUNCTIONS) - VARIANT_FUNCTIONS},
        _variant_function: {name: FUNCTIONS[name] for name in VARIANT_FUNCTIONS},
        _plot: {name: value for name, value in vars(plots).items() if name.startswith("plot_")},
        _data_class: DATA_CLASSES,
    }
    assert all(kinds.values())
    wrong = [
        f"{name}: {requirement}"
        for check, documented in kinds.items()
        for name, value in documented.items()
        for requirement, holds in check(name, value, _sections(value.__doc__))
        if not holds
    ]
    assert not wrong


def test_every_public_name_exists_and_is_looked_at():
    assert set(PUBLIC) == set(FUNCTIONS) | set(DATA_CLASSES) | {
        *("VARIANTS", "LicenceWarning", "heads", "layers", "Preprocessing", "pretraining", "baselines"),
        "ImageTextModel",
    }
    assert set(DATA_CLASSES) == {
        "ConvStemConfig",
        "Evaluation",
        "LoadReport",
        "Output",
        "RotaryConfig",
        "StemConfig",
        "TextConfig",
        "ViTConfig",
    }
    assert len(set(keras_vit.__all__)) == len(keras_vit.__all__)
