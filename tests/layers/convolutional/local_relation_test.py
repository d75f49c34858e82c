import functools

import keras
import pytest

from keras_vit.layers.convolutional.local_relation import LocalRelation
from tests.reference import resnet_baselines as reference
from tests.test_case import assert_close, random_inputs, randomize, run_layer_test, run_parity_test, to_numpy


@pytest.mark.each_backend
def test_layer(tmp_path):
    shapes = {"query/kernel": (7, 4), "key/kernel": (7, 4), "projection/kernel": (7, 12)}
    shapes |= {"geometry_1/kernel": (2, 4), "geometry_1/bias": (4,), "geometry_2/kernel": (4, 4)}
    arguments = {"filters": 12, "window_size": 5, "strides": 2, "shared_channels": 2}
    run_layer_test(LocalRelation, arguments, [(4, 7, 7)], (2, 4, 12), shapes, tmp_path)


# Channels that the relations share evenly and unevenly, and windows larger than the map.
@pytest.mark.parametrize(
    ("size", "window_size", "strides", "shared_channels"),
    [
        pytest.param((4, 7), 3, 1, 3, marks=pytest.mark.slow),
        pytest.param((5, 4), 7, 1, 4, marks=pytest.mark.slow),
        ((1, 3), 3, 1, 8),
        pytest.param((5, 8), 3, 2, 1, marks=pytest.mark.slow),
        ((4, 7), 1, 3, 2),
    ],
)
def test_equals_the_equation(size, window_size, strides, shared_channels):
    layer = LocalRelation(5, window_size, strides, shared_channels)
    equation = functools.partial(reference.local_relation, n=window_size, s=strides, shared=shared_channels)
    run_parity_test(layer, equation, random_inputs((*size, 6)))


@pytest.mark.slow
def test_size_of_the_map_may_be_unknown():
    layer = LocalRelation(5, 5, 2, 4)
    inputs = keras.Input((None, None, 6))
    model = keras.Model(inputs, layer(inputs))
    randomize(layer)
    for size in ((5, 8), (3, 4)):
        [maps] = random_inputs((*size, 6))
        assert_close(model(maps), to_numpy(layer(maps)))


def test_macs():
    # Keys at 28 positions and queries at 8, for 2 relations. Each query compares 9 positions, sums their 5 channels and
    # projects the sums. The prior of 9 distances has two layers.
    expected = 28 * 5 * 2 + 8 * (5 * 2 + 9 * 2 + 9 * 5 + 5 * 12) + 9 * (2 * 2 + 2 * 2)
    layer = LocalRelation(12, 3, 2, 3)
    layer.build((None, 4, 7, 5))
    assert layer.macs((None, 4, 7, 5)) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_size": 4}, "window_size must be odd.*Received: 4"),
    ],
)
def test_refuses_impossible_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        LocalRelation(**{"filters": 12, **arguments})
