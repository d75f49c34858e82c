"""`import keras_vit` is sufficient to load files with any layer or model of the package.

All tests that need a fresh process are in this file, so that only one worker starts a process.
"""

import functools
import importlib
import pkgutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export.formats.exporting import FromPixels
from tests import fresh_process
from tests.models import axial_resnet_test, convolutional_models_test
from tests.models.baselines import resnets_test as resnet_baselines_test
from tests.models.segmenters import tiny_segmenter
from tests.models.tiny import CONFIG, SHAPE, STEM, tiny_model
from tests.test_case import compute, quantize, random_inputs, random_model, randomize


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


def _with_map_pooling():
    config = {"pooling": "map", "class_token": True, "norm_placement": "after_pooling", "layer_scale": 0.1}
    config |= {"representation_dim": 7, "stem": STEM, "patch_size": 1, "rotary": keras_vit.RotaryConfig("mixed")}
    config |= {"attention_inner_norm": True, "mlp_inner_norm": True, "qkv_bias": "no_key", "pooling_num_heads": 2}
    return tiny_model(input_shape=(None, None, 3), include_preprocessing=True, **config)


def _with_more_tokens():
    config = {"distillation_token": True, "num_register_tokens": 2, "pre_norm": True, "mlp": "swiglu", "qk_norm": True}
    return tiny_model(include_preprocessing=True, position_embedding="relative", **config)


def _nested():
    changes = {"position_embedding": "learned_2d", "position_placement": "every_layer_shared", "drop_path_rate": 0.2}
    inner = keras_vit.AxialViT(CONFIG, include_top=False, input_shape=(None, None, 3), name="inner", **changes)
    inputs = keras.Input(SHAPE)
    return keras.Model(inputs, keras.layers.Dense(4, name="after")(inner(inputs)))


def _quantized(model):
    randomize(model)
    quantize(model, "int4", filters="query|output|hidden|predictions")  # "int8" would also quantize the activations.
    return model


# {name: (function that makes a model, function that fills it with random weights, height and width of the images)}
MODELS = {
    "map pooling": (_with_map_pooling, randomize, (8, 9)),
    "more tokens": (_with_more_tokens, randomize, (8, 9)),
    "quantized": (_with_map_pooling, _quantized, (8, 9)),
    "AxialResNet": (axial_resnet_test.tiny, randomize, (16, 24)),
    "VTFPN": (functools.partial(tiny_segmenter, "VTFPN", (38, 45, 3)), random_model, (38, 45)),
}
SLOW_MODELS = {
    "nested": (_nested, randomize, (8, 9)),
    "local relation": (resnet_baselines_test.KINDS["local_relation"], randomize, (33, 46)),
    "BiTResNet": (convolutional_models_test.BUILDS["bit_resnet"][1], random_model, (33, 46)),
    "VTResNet": (convolutional_models_test.BUILDS["visual_transformer"][1], random_model, (33, 46)),
}


@pytest.mark.parametrize(
    ("build", "fill", "size"),
    [
        *(pytest.param(*model, id=name) for name, model in MODELS.items()),
        *(pytest.param(*model, id=name, marks=pytest.mark.slow) for name, model in SLOW_MODELS.items()),
    ],
)
def test_a_model_answers_in_a_fresh_process_as_before(build, fill, size, tmp_path):
    model = fill(build())
    images = random_inputs((*size, 3))
    outputs = compute(model, images)
    assert np.ptp(outputs, axis=0).max() > 1e-5  # The outputs depend on the images.
    np.testing.assert_array_equal(fresh_process.reload_and_run(model, images, tmp_path), outputs)
