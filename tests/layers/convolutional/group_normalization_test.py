import keras
import numpy as np
import pytest

from keras_vit.layers import GroupNormalization
from tests.reference.bit_resnet import group_norm
from tests.test_case import assert_close, random_inputs, run_layer_test, run_parity_test, run_twin_test, to_numpy


@pytest.mark.on_torch
def test_layer(tmp_path):
    weights = {"gamma": (12,), "beta": (12,)}
    zeros = keras.initializers.serialize(keras.initializers.Zeros())
    arguments = {"groups": 4, "epsilon": 1e-3, "gamma_initializer": zeros}
    run_layer_test(GroupNormalization, arguments, [(5, 8, 12)], (5, 8, 12), weights, tmp_path)
    layer = GroupNormalization(**arguments)
    layer.build((None, 5, 8, 12))
    assert not to_numpy(layer.gamma).any()


@pytest.mark.parametrize("groups", [1, 4, 12])
def test_equals_the_equation(groups):
    def equation(maps, weights):
        return group_norm(maps, weights["gamma"], weights["beta"], 1e-3, groups)

    run_parity_test(GroupNormalization(groups, 1e-3), equation, random_inputs((5, 8, 12)))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_equals_the_layer_of_keras(policy):
    [maps] = random_inputs((5, 8, 12))
    ours = GroupNormalization(4, 1e-6, dtype=policy)
    theirs = keras.layers.GroupNormalization(4, epsilon=1e-6, dtype=policy)
    run_twin_test(ours, theirs, maps, tolerance=2e-6 if policy == "float32" else 2**-7)


def test_means_far_from_zero_leave_the_variance_exact():
    # If the variance were computed as E[x^2] - E[x]^2, it would consist of rounding errors.
    [maps] = random_inputs((5, 8, 12))
    maps = (maps + 1000.0).astype("float32")  # The remaining bits (of 24) are exact to 6e-5.
    expected = group_norm(maps.astype("float64"), np.ones(12), np.zeros(12), 1e-6, 4)
    assert_close(GroupNormalization(4, 1e-6)(maps), expected, tolerance=2e-4)


def test_refuses_channels_that_are_no_multiple():
    with pytest.raises(ValueError, match=r"multiple of groups=5\. Received: 12 channels"):
        GroupNormalization(5).build((None, 5, 8, 12))
