import numpy as np
import pytest

from keras_vit.layers.convolutional.global_reasoning import GlobalReasoning
from tests.reference import resnet_baselines as reference
from tests.test_case import norm_shapes, random_inputs, run_layer_test, run_parity_test, to_numpy


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = {"state/kernel": (6, 4), "state/bias": (4,), "assignment/kernel": (6, 3), "assignment/bias": (3,)}
    shapes |= {"graph/kernel": (3, 3), "graph/bias": (3,), "update/kernel": (4, 4), "extension/kernel": (4, 6)}
    shapes |= norm_shapes("norm", 6)
    arguments = {"num_nodes": 3, "num_states": 4}
    run_layer_test(GlobalReasoning, arguments, [(4, 7, 6)], (4, 7, 6), shapes, tmp_path, scale=0.6)


@pytest.mark.parametrize(("size", "numbers"), [((4, 7), (3, 5)), ((1, 3), (6, 2))])
def test_equals_the_equation(size, numbers):
    run_parity_test(GlobalReasoning(*numbers), reference.global_reasoning, random_inputs((*size, 6)))


def test_starts_as_the_residual_connection():
    [maps] = random_inputs((4, 7, 6))
    np.testing.assert_array_equal(to_numpy(GlobalReasoning(3, 4)(maps)), maps)


def test_macs():
    # MACs at 28 positions: to 4 states and 3 nodes, to the nodes and back, from 4 states. Between 3 nodes and 4 states.
    assert GlobalReasoning(3, 4).macs((None, 4, 7, 6)) == 28 * (6 * 7 + 2 * 3 * 4 + 4 * 6) + 3 * 3 * 4 + 3 * 4 * 4
