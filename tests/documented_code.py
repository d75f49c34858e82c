"""Checks of the Python code in documents: its names and arguments, and runs without a network."""

import ast
import dataclasses
import inspect

import keras
import numpy as np

import keras_vit
from keras_vit.weights.catalogue import get_entry
from tests.test_case import randomize


def check_names(code, modules=None):
    """Asserts that each name in `code` exists and that each function accepts its arguments.

    Args:
        code: Python code.
        modules: {name: module} whose attributes are checked, by default those of Keras and of this package.
    """
    modules = dict(modules or {"keras": keras, "keras_vit": keras_vit})
    nodes = list(ast.walk(ast.parse(code)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("keras_vit"):
            exec(ast.unparse(node), modules)
    calls = [(_named(node.func, modules), node) for node in nodes if isinstance(node, ast.Call)]
    calls = [(function, node) for function, node in calls if function is not None]
    assert calls
    for node in nodes:
        if isinstance(node, ast.Attribute):
            _named(node, modules)
    for function, node in calls:
        if all(keyword.arg for keyword in node.keywords):  # Without **.
            keywords = {keyword.arg: None for keyword in node.keywords}
            _check_config_fields(function, inspect.signature(function).bind(*[None] * len(node.args), **keywords))


def _named(node, modules):
    """The object that a syntax node names, such as `keras_vit.ViT`, or `None` for the names of variables."""
    if isinstance(node, ast.Name):
        return modules.get(node.id)
    owner = _named(node.value, modules) if isinstance(node, ast.Attribute) else None
    return None if owner is None else getattr(owner, node.attr)


def _check_config_fields(function, bound):
    """A function of this package that takes any keyword takes the fields of `ViTConfig` only."""
    if not getattr(function, "__module__", "").startswith("keras_vit"):
        return
    kinds = {parameter.kind: name for name, parameter in bound.signature.parameters.items()}
    others = bound.arguments.get(kinds.get(inspect.Parameter.VAR_KEYWORD), {})
    fields = {field.name for field in dataclasses.fields(keras_vit.ViTConfig)}
    assert set(others) <= fields | set(inspect.signature(keras_vit.ViT).parameters), function


def publish(tmp_path, monkeypatch):
    """Makes a working folder with a photograph, and a file in the cache in place of the published one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    address = get_entry("Ti/16@augreg-i21k-i1k-224").url.removeprefix("https://")
    (tmp_path / "cache" / address).parent.mkdir(parents=True)
    keras_vit.save_weights(randomize(keras_vit.ViTTi16(), scale=0.02), tmp_path / "cache" / address, "google")
    keras.utils.save_img("photograph.jpg", np.random.default_rng(0).integers(0, 256, (60, 80, 3)))
