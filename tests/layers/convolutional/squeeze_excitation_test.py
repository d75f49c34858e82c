import pytest

from keras_vit.layers.convolutional.squeeze_excitation import SqueezeExcitation
from tests.reference import resnet_baselines as reference
from tests.test_case import random_inputs, run_layer_test, run_parity_test


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = {"dense_1/kernel": (6, 2), "dense_2/kernel": (2, 6)}
    run_layer_test(SqueezeExcitation, {"reduction": 3}, [(4, 7, 6)], (4, 7, 6), shapes, tmp_path)


@pytest.mark.parametrize(("reduction", "hidden"), [(2, 6), (5, 2), (16, 1)])
def test_equals_the_equation(reduction, hidden):
    layer = SqueezeExcitation(reduction)
    run_parity_test(layer, reference.squeeze_excitation, random_inputs((3, 5, 12)))
    assert layer.dense_1.units == hidden
    assert layer.macs((None, 3, 5, 12)) == 2 * 12 * hidden
