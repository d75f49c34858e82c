import functools

import keras
import numpy as np
import pytest

from keras_vit.architectures.stem import StemConfig
from keras_vit.trunks.bit_resnet import bit_resnet
from tests.reference import bit_resnet as reference
from tests.test_case import assert_close, canonical_weights, random_inputs, run_parity_test, without_values


def _model(stem, size=(None, None)):
    images = keras.Input((*size, 3))
    return keras.Model(images, bit_resnet(images, stem))


@pytest.mark.parametrize(
    ("stage_depths", "size", "is_fixed"),
    [
        ((2, 1), (45, 33), True),
        ((), (47, 30), False),
        pytest.param((1, 2, 1), (32, 48), False, marks=pytest.mark.slow),
    ],
)
def test_equals_the_reference(stage_depths, size, is_fixed):
    stem = StemConfig(stage_depths, width=32)
    model = _model(stem, size if is_fixed else (None, None))
    equation = functools.partial(reference.bit_resnet, stage_depths=stage_depths)
    run_parity_test(model, equation, random_inputs((*size, 3)))
    # Sizes are divided by the stride and rounded up.
    assert model.compute_output_shape((2, *size, 3))[1:3] == tuple(-(-length // stem.stride) for length in size)


@pytest.mark.slow
def test_epsilons_reach_every_part():
    # Large enough that each epsilon changes the result by far.
    stem = StemConfig((1, 1), width=32, group_norm_epsilon=0.5, weight_standardization_epsilon=0.25)
    model = _model(stem, (21, 30))
    equation = functools.partial(reference.bit_resnet, stage_depths=(1, 1), epsilon=0.5, std_epsilon=0.25)
    run_parity_test(model, equation, random_inputs((21, 30, 3)))


@pytest.mark.slow
def test_names():
    model = _model(StemConfig((2, 1), width=32))
    assert [layer.name for layer in model.layers[1:]] == [
        "stem_conv",
        "stem_norm",
        "stem_activation",
        "stem_pooling",
        "stem_stage_0_unit_0",
        "stem_stage_0_unit_1",
        "stem_stage_1_unit_0",
    ]
    assert canonical_weights(model)["stem_stage_1_unit_0/projection_conv/kernel"].shape == (1, 1, 128, 256)


def test_pooling_ignores_the_padding():
    # In a negative map, zeros of the padding would be the maximum.
    model = _model(StemConfig((), width=32))
    pooling = model.get_layer("stem_pooling")
    maps = -1 - np.random.default_rng(0).random((2, 6, 7, 32), "float32")
    assert_close(pooling(maps), reference.windows(maps, 3, 2, -np.inf).max((-1, -2)))


@pytest.mark.slow
def test_parameters_are_those_of_resnet_50():
    # torchvision's ResNet-50 has 25,557,032 parameters, of which 2,049,000 belong to its classifier. A GroupNorm has as
    # many parameters as a batch norm has trained ones.
    with without_values():
        assert _model(StemConfig((3, 4, 6, 3))).count_params() == 25_557_032 - 2_049_000


@pytest.mark.slow
def test_channels_are_last_whatever_the_global_setting():
    keras.config.set_image_data_format("channels_first")
    try:
        model = _model(StemConfig((1,), width=32), (21, 30))
        run_parity_test(model, functools.partial(reference.bit_resnet, stage_depths=(1,)), random_inputs((21, 30, 3)))
    finally:
        keras.config.set_image_data_format("channels_last")
