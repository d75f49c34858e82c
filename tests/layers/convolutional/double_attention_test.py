import numpy as np
import pytest

from keras_vit.layers.convolutional.double_attention import DoubleAttention
from tests.reference import resnet_baselines as reference
from tests.test_case import norm_shapes, random_inputs, run_layer_test, run_parity_test, to_numpy


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = {"feature/kernel": (6, 3), "gathering/kernel": (6, 4), "distribution/kernel": (6, 4)}
    shapes |= {"extension/kernel": (3, 6)} | norm_shapes("norm", 6)
    arguments = {"num_features": 3, "num_attentions": 4}
    run_layer_test(DoubleAttention, arguments, [(4, 7, 6)], (4, 7, 6), shapes, tmp_path, scale=0.6)


@pytest.mark.parametrize(("size", "numbers"), [((4, 7), (3, 5)), ((1, 3), (6, 2))])
def test_equals_the_equation(size, numbers):
    run_parity_test(DoubleAttention(*numbers), reference.double_attention, random_inputs((*size, 6)))


def test_starts_as_the_residual_connection():
    [maps] = random_inputs((4, 7, 6))
    np.testing.assert_array_equal(to_numpy(DoubleAttention(3, 4)(maps)), maps)


def test_macs():
    # MACs at 28 positions: to 3 features and twice 4 attentions; gathering and distributing; from 3 features.
    assert DoubleAttention(3, 4).macs((None, 4, 7, 6)) == 28 * (6 * (3 + 2 * 4) + 2 * 3 * 4 + 3 * 6)
