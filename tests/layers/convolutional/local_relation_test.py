import functools

import pytest

from keras_vit.layers.convolutional.local_relation import LocalRelation
from tests.reference import resnet_baselines as reference
from tests.test_case import random_inputs, run_layer_test, run_parity_test


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = {"query/kernel": (7, 4), "key/kernel": (7, 4), "projection/kernel": (7, 12)}
    shapes |= {"geometry_1/kernel": (2, 4), "geometry_1/bias": (4,), "geometry_2/kernel": (4, 4)}
    arguments = {"filters": 12, "window_size": 5, "strides": 2, "shared_channels": 2}
    run_layer_test(LocalRelation, arguments, [(4, 7, 7)], (2, 4, 12), shapes, tmp_path)


# Channels that the relations share evenly and unevenly, and windows larger than the map.
@pytest.mark.parametrize(
    ("size", "window_size", "strides", "shared_channels"), [*(((1, 3), 3, 1, 8), ((5, 4), 7, 2, 4)), ((4, 7), 1, 3, 2)]
)
def test_equals_the_equation(size, window_size, strides, shared_channels):
    layer = LocalRelation(5, window_size, strides, shared_channels)
    equation = functools.partial(reference.local_relation, n=window_size, s=strides, shared=shared_channels)
    run_parity_test(layer, equation, random_inputs((*size, 6)))


def test_macs():
    # Keys at 28 positions and queries at 8, for 2 relations. Each query compares 9 positions, sums their 5 channels and
    # projects the sums. The prior of 9 distances has two layers.
    expected = 28 * 5 * 2 + 8 * (5 * 2 + 9 * 2 + 9 * 5 + 5 * 12) + 9 * (2 * 2 + 2 * 2)
    layer = LocalRelation(12, 3, 2, 3)
    layer.build((None, 4, 7, 5))
    assert layer.macs((None, 4, 7, 5)) == expected


def test_refuses_an_even_window():
    with pytest.raises(ValueError, match=r"window_size must be odd.*Received: 4"):
        LocalRelation(12, 4)
