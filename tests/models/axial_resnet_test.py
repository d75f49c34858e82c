"""AxialResNet equals NumPy and exact counts. bit_resnet_test.py has the tests shared with BiT-ResNets."""

import functools
import inspect
import math

import pytest

import keras_vit
from keras_vit.architectures import AxialResNetConfig
from tests.models.counting import count_trained, shapes_only
from tests.reference import axial_resnet as reference
from tests.test_case import counted_once, random_inputs, randomize, run_parity_test

SHAPE = (16, 24, 3)


def tiny(stage_depths=(1, 1), input_shape=SHAPE, classes=5, classifier_activation=None, **arguments):
    arguments |= {"input_shape": input_shape, "classes": classes, "classifier_activation": classifier_activation}
    return keras_vit.AxialResNet(stage_depths, 12, 3, **arguments)


@pytest.fixture(scope="module")
def model():
    """A model with random weights, for tests that do not change it."""
    return randomize(tiny())


def test_equals_the_reference(model):
    equation = functools.partial(reference.axial_resnet_logits, stage_depths=(1, 1), k=3)
    run_parity_test(model, equation, random_inputs(SHAPE))


def _norm(channels):
    return 2 * channels


def _attention(width, length, num_heads):
    """(trained parameters, MACs per position)"""
    table = (2 * length - 1) * 2 * width // num_heads
    parameters = width * 2 * width + 2 * _norm(2 * width) + _norm(3 * num_heads) + table
    return parameters, width * 2 * width + length * (3 * width // 2 + 2 * width)


def _count(stage_depths, width, num_heads, size, classes=1000):
    """(trained parameters, MACs) of an AxialResNet for images of a size (height, width), term by term."""
    height, length = (pixels // 4 for pixels in size)
    parameters = 49 * 3 * width + _norm(width)
    macs = 4 * height * length * 49 * 3 * width
    channels = width
    for stage, depth in enumerate(stage_depths):
        inner = 2 * width * 2**stage
        for unit in range(depth):
            s = 2 if stage and not unit else 1
            places, places_out = height * length, height * length // s**2
            parameters += channels * inner + _norm(inner) + inner * 2 * inner + _norm(2 * inner)
            macs += places * channels * inner + places_out * inner * 2 * inner
            for side in (height, length):
                of_attention, macs_of_place = _attention(inner, side, num_heads)
                parameters += of_attention
                macs += places * macs_of_place
            if not unit:
                parameters += channels * 2 * inner + _norm(2 * inner)
                macs += places_out * channels * 2 * inner
            channels, height, length = 2 * inner, height // s, length // s
    return parameters + (channels + 1) * classes, macs + channels * classes


AXIAL50S = 11_586_216
"""Trained parameters of `axial50s` in csrhddlam/axial-deeplab."""


@pytest.mark.slow
@counted_once
def test_published_size():
    model, cost = shapes_only(keras_vit.AxialResNet50)
    trained = count_trained(model)
    assert trained == AXIAL50S
    assert (trained, cost.macs) == _count((3, 4, 6, 3), 32, 8, (224, 224))
    statistics = [math.prod(weight.shape) for weight in model.weights if weight.name.startswith("moving_")]
    assert cost.parameters == trained + sum(statistics)
    assert keras_vit.describe(model).config == AxialResNetConfig((3, 4, 6, 3), 32, 8)
    assert model.name == "axial_resnet_50"


def test_counts_of_another_size(model):
    assert (count_trained(model), keras_vit.profile(model).macs) == _count((1, 1), 12, 3, SHAPE[:2], classes=5)
    defaults = inspect.signature(keras_vit.AxialResNet).parameters
    assert [defaults[name].default for name in ("stage_depths", "width", "num_heads")] == [(3, 4, 6, 3), 32, 8]


@pytest.mark.parametrize("size", [(None, None), (16, 20), (12, 24)])
def test_refuses_sizes_that_it_has_no_tables_for(size):
    with pytest.raises(ValueError, match=r"Height and width must be multiples of 8 pixels"):
        tiny(input_shape=(*size, 3))


def test_refuses_impossible_arguments():
    with pytest.raises(ValueError, match=r"width must be a multiple of num_heads. Received: width=32, num_heads=5"):
        keras_vit.AxialResNet(num_heads=5)
    with pytest.raises(ValueError, match=r"no published AxialResNet weights. Received: 'imagenet'"):
        keras_vit.AxialResNet50(weights="imagenet")


def test_weights_of_others_are_refused(model, tmp_path):
    for attempt in (
        lambda: keras_vit.load_weights(model, "B/16@i21k"),
        lambda: keras_vit.save_weights(model, tmp_path / "model.npz", "google"),
    ):
        with pytest.raises(ValueError, match=r"There are no published weights for AxialResNets such as 'axial_resnet'"):
            attempt()
    assert not list(tmp_path.iterdir())
