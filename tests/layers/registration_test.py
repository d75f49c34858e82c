"""`import keras_vit` is all that a process needs to load a file with any layer or model of the package."""

import importlib
import json
import pkgutil
import subprocess
import sys
import tempfile

import keras

import keras_vit

_PROGRAM = """
import json, sys
import keras_vit
import keras
print(json.dumps([name for name in json.load(sys.stdin) if keras.saving.get_registered_object(name) is None]))
"""


def _classes():
    """All layers and models of the package that a file can have, without those that others derive from."""
    modules = [module.name for module in pkgutil.walk_packages(keras_vit.__path__, "keras_vit.")]
    values = [value for name in modules for value in vars(importlib.import_module(name)).values()]
    layers = {value for value in values if isinstance(value, type) and issubclass(value, keras.layers.Layer)}
    bases = {base for layer in layers for base in layer.__bases__}
    return [
        layer
        for layer in layers
        if layer.__module__.startswith("keras_vit.")
        and not layer.__name__.startswith("_")
        and (layer not in bases or layer.__name__ in keras_vit.layers.__all__)
    ]


def test_all_layers_are_registered_by_the_import():
    names = [keras.saving.get_registered_name(layer) for layer in _classes()]
    assert len(names) > 50
    assert len(set(names)) == len(names)
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        cwd=tempfile.gettempdir(),  # Not the checkout: the installed package must do.
        check=True,
    )
    assert json.loads(process.stdout.splitlines()[-1]) == []
