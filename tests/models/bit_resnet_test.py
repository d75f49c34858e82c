"""BiT-ResNets equal NumPy and exact counts. Also tests features that only BiT-ResNets have."""

import functools
import inspect
import math

import numpy as np
import pytest

import keras_vit
from keras_vit.architectures import BiTResNetConfig
from keras_vit.models import bit_resnet
from tests.models.counting import counts_by_layer, deep_counts, shapes_only
from tests.reference import bit_resnet as reference
from tests.test_case import (
    assert_close,
    check_gradients,
    counted_once,
    random_inputs,
    randomize,
    rest_slow,
    run_parity_test,
    to_numpy,
)

# function: (depths of the stages, width factor, parameters with 1,000 classes, GMACs at 224). timm has the same numbers
# of parameters, see tests/peers/bit_resnet_test.py.
PUBLISHED = {
    "BiTResNet50x1": ((3, 4, 6, 3), 1, 25_549_352, 4.09),
    "BiTResNet50x2": ((3, 4, 6, 3), 2, 97_988_712, 16.12),
    "BiTResNet50x3": ((3, 4, 6, 3), 3, 217_319_080, 36.08),
    "BiTResNet101x1": ((3, 4, 23, 3), 1, 44_541_480, 7.80),
    "BiTResNet101x3": ((3, 4, 23, 3), 3, 387_934_888, 69.49),
    "BiTResNet152x1": ((3, 8, 36, 3), 1, 60_185_128, 11.51),
    "BiTResNet152x2": ((3, 8, 36, 3), 2, 236_335_208, 45.81),
    "BiTResNet152x4": ((3, 8, 36, 3), 4, 936_533_224, 182.78),
    "BiTResNet200x3": ((3, 24, 36, 3), 3, 568_633_000, 134.35),
}
SHAPE = (33, 46, 3)


def tiny(stage_depths=(1, 2), input_shape=SHAPE, classes=5, classifier_activation=None, **arguments):
    arguments |= {"input_shape": input_shape, "classes": classes, "classifier_activation": classifier_activation}
    return keras_vit.BiTResNet(stage_depths, 32, **arguments)


@pytest.fixture(scope="module")
def model():
    """A model with random weights, for tests that do not change it."""
    return randomize(tiny())


@pytest.mark.parametrize(
    ("stage_depths", "size", "root_padding", "root_fill"),
    [
        ((2, 1), (45, 33), None, 0.0),
        ((1, 2), (32, 48), "ignored", -np.inf),
    ],
)
def test_equals_the_reference(stage_depths, size, root_padding, root_fill):
    equation = functools.partial(reference.bit_resnet_logits, stage_depths=stage_depths, root_fill=root_fill)
    run_parity_test(tiny(stage_depths, (*size, 3), root_padding=root_padding), equation, random_inputs((*size, 3)))


@pytest.mark.slow
@counted_once
@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_published_counts(factor):
    """One shallow model gives the counts of every depth of this width."""
    model, cost = shapes_only(lambda: keras_vit.BiTResNet((2, 2, 2, 2), 64 * factor))
    by_layer = counts_by_layer(model, cost, model.weights)
    rows = [row for row in PUBLISHED.values() if row[1] == factor]
    assert rows
    for stage_depths, _, parameters, giga_macs in rows:
        counted, macs = deep_counts(by_layer, stage_depths)
        assert counted == parameters
        assert macs == pytest.approx(giga_macs * 1e9, abs=0.005e9)


@pytest.mark.slow
@counted_once
@pytest.mark.parametrize("function", rest_slow(PUBLISHED))
def test_published_sizes(function):
    stage_depths, factor, parameters, giga_macs = PUBLISHED[function]
    model, cost = shapes_only(getattr(keras_vit, function))
    assert sum(math.prod(weight.shape) for weight in model.weights) == cost.parameters == parameters
    assert cost.macs == pytest.approx(giga_macs * 1e9, abs=0.005e9)
    description = keras_vit.describe(model)
    assert (description.config, description.pixels["mean"]) == (BiTResNetConfig(stage_depths, 64 * factor), 0.5)
    assert model.name == f"bit_resnet_{function.removeprefix('BiTResNet')}"


def test_every_published_size_is_here():
    assert set(bit_resnet.__all__) == {"BiTResNet", *PUBLISHED}


@pytest.mark.parametrize("function", PUBLISHED)
def test_function_passes_its_arguments_on(function, monkeypatch):
    build = getattr(keras_vit, function)
    generic = dict(inspect.signature(keras_vit.BiTResNet).parameters)
    assert build.__name__ == build.__qualname__ == function
    assert list(inspect.signature(build).parameters) == list(generic)[3:]
    assert all(parameter == generic[name] for name, parameter in inspect.signature(build).parameters.items())
    stage_depths, factor, *_ = PUBLISHED[function]
    arguments = {name: object() for name in list(generic)[3:]}
    monkeypatch.setattr(bit_resnet, "BiTResNet", lambda *positional, **named: (positional, named))
    assert build(**arguments) == ((stage_depths, 64 * factor), arguments)


@pytest.mark.slow
def test_names(model):
    assert [layer.name for layer in model.layers] == [
        "images",
        "preprocessing",
        "stem_conv",
        "stem_pooling",
        "stage_0_unit_0",
        "stage_1_unit_0",
        "stage_1_unit_1",
        "final_norm",
        "final_activation",
        "pooling",
        "predictions",
    ]


@pytest.mark.slow
def test_gradients(model):
    check_gradients(model, random_inputs(SHAPE))


@pytest.mark.slow
def test_an_image_does_not_depend_on_its_batch(model):
    [images] = random_inputs(SHAPE, batch=3)
    assert_close(model(images, training=True)[1:2], to_numpy(model(images[1:2], training=True)))


@pytest.mark.slow
def test_freezing():
    model = tiny()
    assert keras_vit.freeze(model, "stage_1_unit_0") == ["stem_conv", "stage_0_unit_0", "stage_1_unit_0"]
    assert {path.split("/")[0] for path in (weight.path for weight in model.trainable_weights)} == {
        "stage_1_unit_1",
        "final_norm",
        "predictions",
    }
    with pytest.raises(ValueError, match=r"no layer 'encoder_block_5'.*Layers: images, .*stage_1_unit_1"):
        keras_vit.freeze(model)


@pytest.mark.slow
def test_what_needs_a_vision_transformer_is_refused(model):
    [images] = random_inputs(SHAPE)
    for function in (keras_vit.attention_maps, keras_vit.attention_rollout):
        with pytest.raises(ValueError, match="encoder block"):
            function(model, images)
    with pytest.raises(ValueError, match=r"Only encoder blocks can be rematerialised, but 'bit_resnet' has none"):
        keras_vit.rematerialize(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stage_depths": ()}, r"stage_depths must be a tuple of at least one integer. Received: \(\)"),
        ({"stage_depths": 50}, "stage_depths must be a tuple of at least one integer. Received: 50"),
        ({"stage_depths": (3, 0)}, "Each number in stage_depths must be a positive integer. Received: 0"),
        ({"width": 48}, "width must be a multiple of 32, the number of groups. Received: 48"),
        ({"root_padding": "same"}, "root_padding must be 'zeros' or 'ignored'. Received: 'same'"),
        ({"pooling": "max"}, "pooling must be 'avg', or None together with include_top=False.*Received: pooling='max'"),
        ({"pooling": None}, "pooling must be 'avg', or None together with include_top.*pooling=None, include_top=True"),
        ({"classes": 0}, "classes must be a positive integer. Received: 0"),
        ({"weights": "imagenet"}, "'BiT-ResNet@imagenet' is not the name of published weights"),
        ({"weights": "missing.weights.h5"}, "weights='missing.weights.h5': there is no such file"),
        ({"input_shape": (32, 32)}, r"input_shape must be \(height, width, channels\)"),
    ],
)
def test_refuses_impossible_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.BiTResNet(**{"stage_depths": (1,), "width": 32, **arguments})
