"""Features shared by models that begin with convolutions: arguments of `keras.applications`, files, precisions."""

import functools
import inspect

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.architectures import BiTResNetConfig, ResNetConfig, VTResNetConfig
from tests.models import bit_resnet_test, resnet_test, visual_transformer_test
from tests.models.segmenters import tiny_segmenter
from tests.reference.vit import softmax
from tests.test_case import (
    MIXED_POLICY,
    assert_close,
    random_inputs,
    random_model,
    randomize,
    run_mixed_precision_test,
    to_numpy,
)

SHAPE = (33, 46, 3)
# kind: (factory, small model, shape before the head: (positions and) channels)
BUILDS = {
    "bit_resnet": (keras_vit.BiTResNet, bit_resnet_test.tiny, (5, 6, 256)),
    "resnet": (
        keras_vit.ResNet,
        functools.partial(resnet_test.tiny, drop_path_rate=0.2, strides_first=True),
        (5, 6, 32),
    ),
    "visual_transformer": (
        keras_vit.VTResNet,
        functools.partial(visual_transformer_test.tiny, num_modules=2, relation_modules=(0,)),
        (6, 24),
    ),
}
SEGMENTER = functools.partial(tiny_segmenter, "VTFPN", input_shape=SHAPE, classifier_activation=None)
CONFIGS = {
    "bit_resnet": BiTResNetConfig((1, 2), 32),
    "resnet": ResNetConfig((1, 2), 4, strides_first=True, drop_path_rate=0.2),
    "visual_transformer": VTResNetConfig(
        **visual_transformer_test.TINY | {"num_modules": 2}, expansion=1, relation_modules=(0,)
    ),
}


@pytest.fixture(params=BUILDS, scope="module")
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def tiny(kind):
    return SEGMENTER if kind == "VTFPN" else BUILDS[kind][1]


@pytest.fixture(scope="module")
def model(tiny):
    """A model with random weights, for tests that do not change it."""
    return random_model(tiny())


@pytest.fixture(scope="module")
def pooled(tiny):
    """A model without a head, for tests that do not change it."""
    return randomize(tiny(include_top=False, name="inner"))


@pytest.mark.slow
def test_outputs(kind, tiny, pooled):
    shape = BUILDS[kind][2]
    [images] = random_inputs(SHAPE)
    assert pooled.output_shape == (None, shape[-1])
    maps = randomize(tiny(include_top=False, pooling=None))
    assert maps.output_shape == (None, *shape)
    assert_close(pooled(images), to_numpy(maps(images)).reshape(2, -1, shape[-1]).mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*BUILDS, "VTFPN"], indirect=True)
def test_pixels_of_any_size_behind_other_layers(kind, tiny, model):
    """A model after other layers, with only non-default arguments, equals the plain model of fixed size."""
    inputs = keras.Input((None, None, 3))
    arguments = {"input_tensor": keras.layers.Rescaling(0.5)(inputs), "classifier_activation": "softmax"}
    behind = tiny(input_shape=None, include_preprocessing=True, name="named", **arguments)
    assert behind.inputs[0] is inputs
    assert (behind.name, behind.output_shape[1:-1]) == ("named", (None, None) if kind == "VTFPN" else ())
    pixels = np.random.default_rng(0).integers(0, 256, (2, *SHAPE)).astype("float32")
    logits = to_numpy(model(keras_vit.preprocess_input(0.5 * pixels, model)))
    assert_close(behind(pixels), np.full(logits.shape, 0.2))  # The head starts at zero.
    assert np.ptp(logits, axis=0).max() > 0.1
    assert_close(random_model(behind)(pixels), softmax(logits), 1e-5 if kind == "VTFPN" else 5e-5)


def test_config(kind, model):
    assert keras_vit.describe(model).config == CONFIGS[kind]
    defaults = inspect.signature(BUILDS[kind][0]).parameters
    assert (defaults["classes"].default, defaults["classifier_activation"].default) == (1000, "softmax")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resnet"], indirect=True)
def test_files(tiny, model, tmp_path):
    [images] = random_inputs(SHAPE)
    model.save_weights(tmp_path / "mine.weights.h5")
    again = tiny(weights=tmp_path / "mine.weights.h5")
    np.testing.assert_array_equal(to_numpy(again(images)), to_numpy(model(images)))
    model.save(tmp_path / "model.keras")
    assert keras_vit.describe(keras.models.load_model(tmp_path / "model.keras")) == keras_vit.describe(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("resnet", MIXED_POLICY),
        *(("bit_resnet", "mixed_bfloat16"), ("visual_transformer", "mixed_bfloat16"), ("VTFPN", MIXED_POLICY)),
    ],
)
def test_mixed_precision(kind, policy):
    run_mixed_precision_test(SEGMENTER if kind == "VTFPN" else BUILDS[kind][1], policy, SHAPE)
