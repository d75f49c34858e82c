"""Public docstrings describe arguments and return values, and contain an example."""

import ast
import dataclasses
import inspect
import pickle

import keras
import pytest

import keras_vit
from keras_vit.analysis import plots

PUBLIC = {name: getattr(room, name) for room in (keras_vit, keras_vit.baselines) for name in room.__all__}
GENERIC_FUNCTIONS = {
    *("AxialResNet", "AxialViT", "BiTResNet", "PanopticFPN", "ResNet", "SelfAttentionNetwork", "VTFPN", "VTResNet"),
    "ViT",
}
# Templates write these docstrings, which refer to the general functions for the arguments.
VARIANT_FUNCTIONS = {*keras_vit.models.__all__, *keras_vit.baselines.__all__} - GENERIC_FUNCTIONS
LAYERS = {name: getattr(room, name) for room in (keras_vit.layers, keras_vit.pretraining) for name in room.__all__} | {
    name: value for name, value in PUBLIC.items() if inspect.isclass(value) and issubclass(value, keras.layers.Layer)
}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
DATA_CLASSES = {name: value for name, value in PUBLIC.items() if dataclasses.is_dataclass(value)}


def _sections(documentation):
    """{title: lines} of the sections of a docstring."""
    sections, title = {}, None
    for line in inspect.cleandoc(documentation).splitlines():
        if line.endswith(":") and not line.startswith(" ") and line[0].isupper() and len(line.split()) < 3:
            title = line[:-1]
            sections[title] = []
        elif title:
            sections[title].append(line)
    return sections


def _described(section):
    """Names that a section describes, i.e. the first words of its entries."""
    entries = [line for line in section if line.startswith("    ") and not line.startswith("     ")]
    return {line.split(":")[0].strip().lstrip("*") for line in entries if ":" in line}


def _parameters(function):
    return set(inspect.signature(function).parameters) - {"self", "kwargs"}


def _returns_something(function):
    nodes = ast.walk(ast.parse(inspect.getsource(function)))
    return any(isinstance(node, ast.Return) and node.value is not None for node in nodes)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    layer = LAYERS[name]
    sections = _sections(layer.__doc__)
    if "__init__" in layer.__dict__:
        assert _parameters(layer.__init__) == _described(sections["Args"])
    assert _parameters(layer.call) == _described(sections["Call arguments"])
    assert any("(B" in line or "(2, " in line or "Same shape" in line for line in sections["Returns"])
    assert any(line.startswith(">>> ") for line in sections["Example"])
    for method in ("__init__", "build", "call"):  # The docstring of the class describes them.
        assert method not in layer.__dict__ or layer.__dict__[method].__doc__ is None


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - VARIANT_FUNCTIONS))
def test_functions(name):
    sections = _sections(FUNCTIONS[name].__doc__)
    assert _parameters(FUNCTIONS[name]) == _described(sections["Args"])
    assert bool(sections.get("Returns")) == _returns_something(FUNCTIONS[name])
    assert sections["Raises"]
    assert any(line.startswith(">>> ") for line in sections["Example"])


@pytest.mark.parametrize("name", sorted(VARIANT_FUNCTIONS))
def test_variant_functions(name):
    assert any(f".{generic}(" in FUNCTIONS[name].__doc__ for generic in GENERIC_FUNCTIONS)
    sections = _sections(FUNCTIONS[name].__doc__)
    assert sections["Returns"]
    module = "keras_vit.baselines" if name in keras_vit.baselines.__all__ else "keras_vit"
    assert any(f" {module}.{name}(" in line for line in sections["Example"])
    assert pickle.loads(pickle.dumps(FUNCTIONS[name])) is FUNCTIONS[name]


@pytest.mark.parametrize("name", [name for name in vars(plots) if name.startswith("plot_")])
def test_plots(name):
    sections = _sections(vars(plots)[name].__doc__)
    assert _parameters(vars(plots)[name]) == _described(sections["Args"])
    assert sections["Returns"]
    assert any(f"plots.{name}(" in line for line in sections["Example"])


@pytest.mark.parametrize("name", DATA_CLASSES)
def test_data_classes(name):
    sections = _sections(DATA_CLASSES[name].__doc__)
    assert _parameters(DATA_CLASSES[name]) == _described(sections["Args"])
    assert any(line.startswith(">>> ") for line in sections["Example"])


def test_every_public_name_exists_and_is_looked_at():
    assert set(PUBLIC) == set(FUNCTIONS) | set(DATA_CLASSES) | {
        *("VARIANTS", "LicenceWarning", "layers", "Preprocessing", "pretraining", "baselines"),
    }
    assert set(DATA_CLASSES) == {
        "ConvStemConfig",
        "Evaluation",
        "LoadReport",
        "RotaryConfig",
        "StemConfig",
        "ViTConfig",
    }
    assert len(set(keras_vit.__all__)) == len(keras_vit.__all__)
