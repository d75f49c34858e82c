"""The test that each project's layout must pass, `run_converter_test`, and helpers for files of weights.

tests/peers compares the layouts with the projects themselves.
"""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.containers.files import open_arrays
from keras_vit.weights.containers.h5 import write_h5
from keras_vit.weights.containers.npz import write_npz
from keras_vit.weights.containers.safetensors import write_safetensors
from keras_vit.weights.formats import FORMATS
from tests.test_case import canonical_weights, compute, random_inputs, randomize, without_values

CONFIG = keras_vit.ViTConfig(patch_size=(4, 3), hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)
SHAPE = (8, 9, 3)  # 2 x 3 patches.
_WRITERS = {".npz": write_npz, ".safetensors": write_safetensors, ".h5": write_h5}


def make(config=CONFIG, input_shape=SHAPE, classes=5, seed=1, **arguments):
    """A small model with random weights and without an activation of the classifier."""
    arguments = {"classifier_activation": None, **arguments}
    return randomize(keras_vit.ViT(config, input_shape=input_shape, classes=classes, **arguments), seed)


def make_shell(config=CONFIG, input_shape=SHAPE, classes=5, **arguments):
    """A model with one layer and without weight values. It is cheap, for tests in which the config is refused."""
    with without_values():
        return keras_vit.ViT(config, input_shape=input_shape, classes=classes, **{"num_layers": 1, **arguments})


def save(model, folder, format):
    """Saves a model in a new folder; returns the path to load it from."""
    folder.mkdir()
    suffix = FORMATS[format].file_suffix
    path = folder / f"model{suffix}" if suffix else folder
    keras_vit.save_weights(model, str(path), format)
    return path


def contents(path):
    """{file name: {array name: array}, or the parsed JSON} of the files that `save_weights` wrote."""
    found = {}
    for file in [path] if path.is_file() else path.iterdir():
        if file.suffix == ".json":
            found[file.name] = json.loads(file.read_text())
        else:
            with open_arrays(file) as arrays:
                found[file.name] = dict(arrays)
    return found


def edit(file, change):
    """Replaces the arrays of a file by `change(arrays)`."""
    with open_arrays(file) as arrays:
        changed = change(dict(arrays))
    _WRITERS[file.suffix](file, changed)


def assert_same_weights(model, expected):
    """Asserts that a model's weights equal `expected`, {canonical path: array}, bit for bit."""
    assert_same_arrays(canonical_weights(model), expected)


def assert_same_arrays(found, expected):
    """Asserts that two dictionaries of arrays are equal, bit for bit."""
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array, err_msg=path)


def assert_refused(load, model, match):
    """Asserts that `load()` raises a ValueError and changes neither the model's weights nor its description."""
    weights, description = canonical_weights(model), keras_vit.describe(model)
    with pytest.raises(ValueError, match=match) as caught:
        load()
    assert_same_weights(model, weights)
    assert keras_vit.describe(model) == description
    return str(caught.value)


def run_converter_test(format, folder, config=CONFIG, input_shape=SHAPE, hints=None, **arguments):
    """A model that is saved and loaded keeps its weights, outputs and pixels; saved again, it has the same files.

    Args:
        format: Format of `save_weights`.
        folder: Empty folder for the files.
        config: `ViTConfig` of the model.
        input_shape: Shape of the model's images.
        hints: Arguments of `from_pretrained` for the settings that are missing from files of this format.
        **arguments: Further arguments of `keras_vit.ViT`.
    """
    model = make(config, input_shape, **arguments)
    set_pixels(model, format)
    [images] = random_inputs(input_shape)
    weights, pixels, outputs = canonical_weights(model), keras_vit.describe(model).pixels, compute(model, [images])
    path = save(model, folder / "first", format)
    again = keras_vit.from_pretrained(path, **{"classifier_activation": None, **(hints or {})})
    _check_equal(again, weights, pixels, format)
    np.testing.assert_array_equal(compute(again, [images]), outputs)
    _check_files(contents(save(again, folder / "again", format)), contents(path))
    randomize(model, seed=7)
    model.get_layer("preprocessing").set_preprocessing()
    report = keras_vit.load_weights(model, path)
    assert set(report.loaded) == set(weights)
    assert not report.adapted
    assert report.format == format
    _check_equal(model, weights, pixels, format)


def set_pixels(model, format):
    """Sets unusual pixel settings, if files of the format contain pixel settings."""
    if not FORMATS[format].file_suffix:  # Such a file contains arrays only.
        model.get_layer("preprocessing").set_preprocessing(
            mean=[0.1, 0.2, 0.4], std=[0.25, 0.5, 0.75], resize=model.input_shape[1:3], interpolation="bicubic"
        )


def _check_equal(model, weights, pixels, format):
    assert_same_weights(model, weights)
    if not FORMATS[format].file_suffix:  # Such a file contains arrays only.
        found, expected = keras_vit.describe(model).pixels, dict(pixels)
        for name in ("mean", "std"):  # KerasHub stores other values, from which these are computed.
            np.testing.assert_allclose(found.pop(name), expected.pop(name), rtol=1e-12)
        assert found == expected


def _check_files(files, expected):
    assert files.keys() == expected.keys()
    for file in files:
        assert files[file].keys() == expected[file].keys()
        if file.endswith(".json"):
            assert files[file] == expected[file]
            continue
        for name, array in expected[file].items():
            assert files[file][name].dtype == array.dtype == np.float32
            np.testing.assert_array_equal(files[file][name], array, err_msg=name)
