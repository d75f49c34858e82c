import functools

import keras
import numpy as np
import pytest

from keras_vit.architectures.stem import StemConfig
from keras_vit.trunks.hybrid_resnet import hybrid_resnet
from tests.reference import bit_resnet as reference
from tests.test_case import assert_close, random_inputs, run_parity_test, without_values


def _model(stem, size=(None, None)):
    images = keras.Input((*size, 3))
    return keras.Model(images, hybrid_resnet(images, stem))


@pytest.mark.parametrize(
    ("stage_depths", "size", "is_fixed", "epsilons"),
    [
        # Large enough that each epsilon changes the result by far.
        ((2, 1), (45, 33), True, (0.5, 0.25)),
        ((), (47, 30), False, (1e-5, 1e-10)),
        pytest.param((1, 2, 1), (32, 48), False, (1e-5, 1e-10), marks=pytest.mark.slow),
    ],
)
def test_equals_the_reference(stage_depths, size, is_fixed, epsilons):
    epsilon, std_epsilon = epsilons
    stem = StemConfig(stage_depths, width=32, group_norm_epsilon=epsilon, weight_standardization_epsilon=std_epsilon)
    model = _model(stem, size if is_fixed else (None, None))
    equation = functools.partial(
        reference.bit_resnet, stage_depths=stage_depths, epsilon=epsilon, std_epsilon=std_epsilon
    )
    run_parity_test(model, equation, random_inputs((*size, 3)))
    # Sizes are divided by the stride and rounded up.
    assert model.compute_output_shape((2, *size, 3))[1:3] == tuple(-(-length // stem.stride) for length in size)


def test_pooling_ignores_the_padding():
    # In a negative map, zeros of the padding would be the maximum.
    model = _model(StemConfig((), width=32))
    pooling = model.get_layer("stem_pooling")
    maps = -1 - np.random.default_rng(0).random((2, 6, 7, 32), "float32")
    assert_close(pooling(maps), reference.windows(maps, 3, 2, -np.inf).max((-1, -2)))


def test_parameters_are_those_of_resnet_50():
    # torchvision's ResNet-50 has 25,557,032 parameters, of which 2,049,000 belong to its classifier. A GroupNorm has as
    # many parameters as a batch norm has trained ones.
    with without_values():
        assert _model(StemConfig((3, 4, 6, 3))).count_params() == 25_557_032 - 2_049_000
