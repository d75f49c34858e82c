"""What models that begin with convolutions have in common: the matrix of `keras.applications`, files, precisions."""

import inspect

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.architectures import BiTResNetConfig, ResNetConfig, VTResNetConfig
from tests.fresh_process import reload_and_run
from tests.models import bit_resnet_test, resnet_test, visual_transformer_test
from tests.test_case import (
    MIXED_POLICIES,
    assert_close,
    random_inputs,
    randomize,
    rest_slow,
    run_mixed_precision_test,
    to_numpy,
)

SHAPE = (33, 46, 3)
# kind: the factory, a small model of it, and what this has before the head: (places and) channels.
BUILDS = {
    "bit_resnet": (keras_vit.BiTResNet, bit_resnet_test.tiny, (5, 6, 256)),
    "resnet": (keras_vit.ResNet, resnet_test.tiny, (5, 6, 32)),
    "visual_transformer": (keras_vit.VTResNet, visual_transformer_test.tiny, (6, 24)),
}


@pytest.fixture(params=BUILDS)
def kind(request):
    return request.param


@pytest.fixture
def tiny(kind):
    return BUILDS[kind][1]


def test_outputs(kind, tiny):
    factory, _, shape = BUILDS[kind]
    [images] = random_inputs(SHAPE)
    assert_close(tiny(classifier_activation="softmax")(images), np.full((2, 5), 0.2))  # The head starts at zero.
    defaults = inspect.signature(factory).parameters
    assert (defaults["classes"].default, defaults["classifier_activation"].default) == (1000, "softmax")
    pooled = randomize(tiny(include_top=False))
    assert pooled.output_shape == (None, shape[-1])
    maps = randomize(tiny(include_top=False, pooling=None))
    assert maps.output_shape == (None, *shape)
    assert_close(pooled(images), to_numpy(maps(images)).reshape(2, -1, shape[-1]).mean(1))


@pytest.mark.parametrize("channels", rest_slow([4, 3, 1]))
def test_variable_size(tiny, channels):
    model = randomize(tiny(input_shape=(None, None, channels)))
    for size in ((32, 64), (33, 31)):
        [images] = random_inputs((*size, channels))
        fixed = randomize(tiny(input_shape=(*size, channels)))
        assert_close(model(images), to_numpy(fixed(images)))


def test_input_tensor(tiny):
    [images] = random_inputs(SHAPE)
    inputs = keras.Input(SHAPE)
    behind = randomize(tiny(input_shape=None, input_tensor=keras.layers.Rescaling(2.0)(inputs)))
    assert behind.inputs[0] is inputs
    assert_close(behind(images), to_numpy(randomize(tiny())(2 * images)))


def test_preprocessing_inside(tiny):
    pixels = np.random.default_rng(0).integers(0, 256, (2, *SHAPE)).astype("uint8")
    inside, plain = randomize(tiny(include_preprocessing=True)), randomize(tiny())
    assert_close(inside(pixels), to_numpy(plain(keras_vit.preprocess_input(pixels, plain))))


@pytest.mark.parametrize(
    ("kind", "changes", "config"),
    [
        ("bit_resnet", {}, BiTResNetConfig((1, 2), 32)),
        (
            "resnet",
            {"drop_path_rate": 0.2, "strides_first": True},
            ResNetConfig((1, 2), 4, strides_first=True, drop_path_rate=0.2),
        ),
        (
            "visual_transformer",
            {"relation_modules": (0, 2)},
            VTResNetConfig(**visual_transformer_test.TINY, expansion=1, relation_modules=(0, 2)),
        ),
    ],
)
def test_files(tiny, changes, config, tmp_path):
    [images] = random_inputs(SHAPE)
    model = randomize(tiny(**changes))
    expected = to_numpy(model(images))
    model.save_weights(tmp_path / "mine.weights.h5")
    again = tiny(weights=tmp_path / "mine.weights.h5", **changes)
    np.testing.assert_array_equal(to_numpy(again(images)), expected)
    description = keras_vit.describe(model)
    assert description.config == config
    np.testing.assert_array_equal(reload_and_run(model, [images], tmp_path), expected)
    model.save(tmp_path / "model.keras")
    assert keras_vit.describe(keras.models.load_model(tmp_path / "model.keras")) == description


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_mixed_precision(tiny, policy):
    run_mixed_precision_test(tiny, policy, SHAPE)


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        (
            "bit_resnet",
            {"stem_pooling": (2, 9, 12, 32), "stage_1_unit_1": (2, 5, 6, 256), "pooling": (2, 256)},
        ),
        (
            "resnet",
            {"stem_pooling": (2, 9, 12, 4), "stage_1_unit_1": (2, 5, 6, 32), "pooling": (2, 32)},
        ),
        (
            "visual_transformer",
            {
                "tokenizer_0": (2, 6, 24),
                "token_projector_0": (2, 5, 6, 16),
                "token_relation_2": (2, 6, 24),
                "pooling": (2, 24),
            },
        ),
    ],
)
def test_features_of_a_nested_model(tiny, shapes):
    inner = randomize(tiny(include_top=False, name="inner"))
    inputs = keras.Input(SHAPE)
    outer = keras.Model(inputs, keras.layers.Dense(3, name="after")(inner(inputs)))
    [images] = random_inputs(SHAPE)
    found = keras_vit.features(outer, images, list(shapes))
    assert {name: array.shape for name, array in found.items()} == shapes
    assert_close(found["pooling"], to_numpy(inner(images)))
    assert keras_vit.describe(outer).config == keras_vit.describe(inner).config
