"""AxialResNet: against NumPy, and counts term by term; what BiT-ResNets share with it is tested there."""

import functools
import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.architectures import AxialResNetConfig
from tests.fresh_process import reload_and_run
from tests.reference import axial_resnet as reference
from tests.test_case import (
    MIXED_POLICIES,
    check_gradients,
    counted_once,
    random_inputs,
    randomize,
    run_mixed_precision_test,
    run_parity_test,
    to_numpy,
)

SHAPE = (16, 24, 3)


def tiny(stage_depths=(1, 2), input_shape=SHAPE, classes=5, classifier_activation=None, **arguments):
    arguments |= {"input_shape": input_shape, "classes": classes, "classifier_activation": classifier_activation}
    return keras_vit.AxialResNet(stage_depths, 12, 3, **arguments)


@pytest.mark.parametrize(("stage_depths", "size"), [((2,), (8, 12)), ((1, 2), (24, 16)), ((1, 1, 1), (32, 48))])
def test_equals_the_reference(stage_depths, size):
    equation = functools.partial(reference.axial_resnet_logits, stage_depths=stage_depths, k=3)
    run_parity_test(tiny(stage_depths, (*size, 3)), equation, random_inputs((*size, 3)))


def _norm(channels):
    return 2 * channels


def _attention(width, length, num_heads):
    """Trained parameters, and multiply-accumulates for a place."""
    table = (2 * length - 1) * 2 * width // num_heads
    parameters = width * 2 * width + 2 * _norm(2 * width) + _norm(3 * num_heads) + table
    return parameters, width * 2 * width + length * (3 * width // 2 + 2 * width)


def _count(stage_depths, width, num_heads, size, classes=1000):
    """(trained parameters, MACs) of an AxialResNet, term by term."""
    parameters = 49 * 3 * width + _norm(width)
    macs = (size // 2) ** 2 * 49 * 3 * width
    channels, length = width, size // 4
    for stage, depth in enumerate(stage_depths):
        inner = 2 * width * 2**stage
        for unit in range(depth):
            s = 2 if stage and not unit else 1
            places, places_out = length**2, (length // s) ** 2
            of_attention, macs_of_place = _attention(inner, length, num_heads)
            parameters += channels * inner + _norm(inner) + 2 * of_attention + inner * 2 * inner + _norm(2 * inner)
            macs += places * (channels * inner + 2 * macs_of_place) + places_out * inner * 2 * inner
            if not unit:
                parameters += channels * 2 * inner + _norm(2 * inner)
                macs += places_out * channels * 2 * inner
            channels, length = 2 * inner, length // s
    return parameters + (channels + 1) * classes, macs + channels * classes


AXIAL50S = 11_586_216
"""Trained parameters of `axial50s` in csrhddlam/axial-deeplab."""


@counted_once
@pytest.mark.parametrize("width", [32, 48, 64])
def test_published_sizes(width):
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.AxialResNet50() if width == 32 else keras_vit.AxialResNet(width=width)
        cost = keras_vit.profile(model)
        keras.utils.clear_session()
    trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    assert (trained, cost.macs) == _count((3, 4, 6, 3), width, 8, 224)
    assert (trained == AXIAL50S) == (width == 32)
    statistics = [math.prod(weight.shape) for weight in model.weights if weight.name.startswith("moving_")]
    assert cost.parameters == trained + sum(statistics)
    assert keras_vit.describe(model).config == AxialResNetConfig((3, 4, 6, 3), width, 8)


def test_counts_of_another_size():
    model = tiny((1, 2), (32, 32, 3), classes=5)
    trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    assert (trained, keras_vit.profile(model).macs) == _count((1, 2), 12, 3, 32, classes=5)


def test_names():
    assert [layer.name for layer in tiny().layers] == [
        "images",
        "preprocessing",
        "stem_margin",
        "stem_conv",
        "stem_norm",
        "stem_activation",
        "stem_padding",
        "stem_pooling",
        "stage_0_unit_0",
        "stage_1_unit_0",
        "stage_1_unit_1",
        "pooling",
        "predictions",
    ]


def test_gradients():
    check_gradients(randomize(tiny()), random_inputs(SHAPE))


def test_training_moves_weights_and_statistics():
    model = tiny()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = {weight.path: to_numpy(weight) for weight in model.weights}
    [images] = random_inputs(SHAPE, batch=8)
    for _ in range(2):  # The head starts at zero: the first step changes nothing else.
        model.train_on_batch(images, np.arange(8) % 5)
    changed = {weight.path for weight in model.weights if np.any(to_numpy(weight) != before[weight.path])}
    assert "stem_norm/moving_mean" in changed
    assert "stage_1_unit_1/width_attention/logit_norm/moving_variance" in changed
    assert {path.split("/")[0] for path in changed} == {layer.name for layer in model.layers if layer.weights}


def test_reload(tmp_path):
    [images] = random_inputs(SHAPE)
    model = randomize(tiny(input_shape=SHAPE))
    np.testing.assert_array_equal(reload_and_run(model, [images], tmp_path), to_numpy(model(images)))
    model.save_weights(tmp_path / "mine.weights.h5")
    np.testing.assert_array_equal(to_numpy(tiny(weights=tmp_path / "mine.weights.h5")(images)), to_numpy(model(images)))


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_mixed_precision(policy):
    run_mixed_precision_test(tiny, policy, SHAPE)


@pytest.mark.parametrize("size", [(None, None), (16, None), (16, 20), (12, 24)])
def test_refuses_sizes_that_it_has_no_tables_for(size):
    with pytest.raises(ValueError, match=r"images of one size, of which height and width are multiples of 8 pixels"):
        tiny(input_shape=(*size, 3))


def test_refuses_impossible_arguments():
    with pytest.raises(ValueError, match=r"width must be a multiple of num_heads. Received: width=32, num_heads=5"):
        keras_vit.AxialResNet(num_heads=5)
    with pytest.raises(ValueError, match=r"num_heads must be a positive integer. Received: 0"):
        keras_vit.AxialResNet(num_heads=0)
    with pytest.raises(ValueError, match=r"no published weights of AxialResNets. Received: 'imagenet'"):
        keras_vit.AxialResNet50(weights="imagenet")


def test_weights_of_others_are_refused(tmp_path):
    for attempt in (
        lambda: keras_vit.load_weights(tiny(), "B/16@i21k"),
        lambda: keras_vit.save_weights(tiny(), tmp_path / "model.npz", "google"),
    ):
        with pytest.raises(ValueError, match=r"There are no published weights of AxialResNets as 'axial_resnet' is"):
            attempt()
    assert not list(tmp_path.iterdir())
