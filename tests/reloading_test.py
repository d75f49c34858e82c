"""`import keras_vit` is sufficient to load files with any layer or model. Refusing hostile files costs little.

All tests that need a fresh process are in this file, so that only one worker starts a process.
"""

import importlib
import os
import pkgutil
import re
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export.formats.exporting import FromPixels
from tests import fresh_process
from tests.models import axial_resnet_test
from tests.models.tiny import CONFIG, SHAPE, STEM, tiny_model
from tests.test_case import compute, quantize, random_inputs, randomize, slow_except
from tests.weights import converter_case
from tests.weights.containers.hostile_files import write_hostile_files


def _classes():
    """All layers and models of the package that files can contain. Base classes are left out."""
    modules = [module.name for module in pkgutil.walk_packages(keras_vit.__path__, "keras_vit.")]
    values = [value for name in modules for value in vars(importlib.import_module(name)).values()]
    layers = {value for value in values if isinstance(value, type) and issubclass(value, keras.layers.Layer)}
    bases = {base for layer in layers for base in layer.__bases__}
    return [
        layer
        for layer in layers
        if layer.__module__.startswith("keras_vit.")
        and not layer.__name__.startswith("_")
        and layer is not FromPixels  # Only its exported graph is stored.
        and (layer not in bases or layer.__name__ in keras_vit.layers.__all__)
    ]


def test_all_layers_are_registered_by_the_import():
    names = [keras.saving.get_registered_name(layer) for layer in _classes()]
    assert set(names) == {f"keras_vit>{layer.__qualname__}" for layer in _classes()}
    assert len(names) > 50
    assert len(set(names)) == len(names)
    assert fresh_process.unregistered(names) == []


def _quantized():
    config = {"pooling": "map", "class_token": True, "norm_placement": "after_pooling", "layer_scale": 0.1}
    config |= {"representation_dim": 7, "stem": STEM, "patch_size": 1, "rotary": keras_vit.RotaryConfig("mixed")}
    config |= {"attention_inner_norm": True, "mlp_inner_norm": True, "qkv_bias": "no_key", "pooling_num_heads": 2}
    model = randomize(tiny_model(input_shape=(None, None, 3), include_preprocessing=True, **config))
    quantize(model, "int4", filters="query|output|hidden|predictions")  # "int8" would also quantize the activations.
    return model


def _with_more_tokens():
    config = {"distillation_token": True, "num_register_tokens": 2, "pre_norm": True, "mlp": "swiglu", "qk_norm": True}
    return randomize(tiny_model(include_preprocessing=True, position_embedding="relative", **config))


def _nested():
    changes = {"position_embedding": "learned_2d", "position_placement": "every_layer_shared", "drop_path_rate": 0.2}
    inner = keras_vit.AxialViT(CONFIG, include_top=False, input_shape=(None, None, 3), name="inner", **changes)
    inputs = keras.Input(SHAPE)
    return randomize(keras.Model(inputs, keras.layers.Dense(4, name="after")(inner(inputs))))


# {name: (function that makes a model with random weights, height and width of the images)}
MODELS = {
    "quantized": (_quantized, (8, 9)),
    "more tokens": (_with_more_tokens, (8, 9)),
    "AxialResNet": (lambda: randomize(axial_resnet_test.tiny()), (16, 24)),
    "nested": (_nested, (8, 9)),
}


@pytest.mark.parametrize("name", slow_except(["quantized", "more tokens"], list(MODELS)))
def test_a_model_answers_in_a_fresh_process_as_before(name, tmp_path):
    build, size = MODELS[name]
    model = build()
    images = random_inputs((*size, 3))
    outputs = compute(model, images)
    assert np.ptp(outputs, axis=0).max() > 1e-5  # The outputs depend on the images.
    np.testing.assert_array_equal(fresh_process.reload_and_run(model, images, tmp_path), outputs)


MOST_SECONDS, FREE_BYTES, MOST_INFLATION = 5, 64 * 2**20, 100


def _size(path):
    return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else os.path.getsize(path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak memory")
@pytest.mark.slow
def test_refusing_costs_little(tmp_path):
    """A file of 10 MB takes at most 5 s of processor time, and memory of at most 64 MB plus 100 times its size."""
    hub = converter_case.CONFIG.replace(mlp="gelu_exact", layer_norm_epsilon=1e-12)
    configs = {"google": converter_case.CONFIG, "keras_hub": hub, "huggingface": hub}
    small = {
        format: converter_case.save(converter_case.make(config), tmp_path / format, format)
        for format, config in configs.items()
    }
    (tmp_path / "hostile").mkdir()
    files = write_hostile_files(tmp_path / "hostile", small)
    costs = fresh_process.costs_of_refusals({name: (str(path), args) for name, (path, args, _) in files.items()})
    for name, (path, _, match) in files.items():
        error, seconds, num_bytes = costs[name]
        assert re.search(f"(?s)^ValueError: .*{match}", error), f"{name}: {error[:1000]}"
        assert len(error) < 5_000, name
        assert seconds < MOST_SECONDS, name
        assert num_bytes < FREE_BYTES + MOST_INFLATION * min(_size(path), 10**7), name
