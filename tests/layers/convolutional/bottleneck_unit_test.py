import functools

import numpy as np
import pytest

from keras_vit.layers.convolutional.bottleneck_unit import BottleneckUnit
from tests.reference import bit_resnet as reference
from tests.test_case import MIXED_POLICIES, canonical_weights, random_inputs, run_layer_test, run_parity_test, to_numpy

CONVS = {"conv_1": (1, 1, 64, 32), "conv_2": (3, 3, 32, 32), "conv_3": (1, 1, 32, 128)}
PROJECTION = {"projection_conv": (1, 1, 64, 128)}
# (map size, strides, channels of the maps, whether the unit projects them). Strides of 2: sides of each parity.
MAPS = [((6, 8), 1, 128, False), ((5, 8), 2, 64, True)]


def _weight_shapes(convs):
    kernels = {f"{conv}/kernel": shape for conv, shape in convs.items()}
    norms = {conv.replace("conv", "norm"): shape[-1:] for conv, shape in convs.items()}
    return kernels | {f"{norm}/{part}": shape for norm, shape in norms.items() for part in ("gamma", "beta")}


def test_layer(tmp_path):
    run_layer_test(
        BottleneckUnit,
        {"width": 32, "strides": 2, "group_norm_epsilon": 1e-4, "weight_standardization_epsilon": 1e-3},
        [(5, 8, 64)],
        (3, 4, 128),
        _weight_shapes(CONVS | PROJECTION),
        tmp_path,
    )


@pytest.mark.parametrize(("size", "strides", "channels", "projects"), MAPS)
def test_equals_the_reference(size, strides, channels, projects):
    # Large enough that each epsilon changes the result.
    epsilon, std_epsilon = (1e-5, 1e-10) if strides == 1 else (0.5, 0.25)
    unit = BottleneckUnit(32, strides, epsilon, std_epsilon)
    equation = functools.partial(reference.bottleneck_unit, s=strides, epsilon=epsilon, std_epsilon=std_epsilon)
    run_parity_test(unit, equation, random_inputs((*size, channels)))
    assert any("projection" in path for path in canonical_weights(unit)) == projects


def test_starts_as_the_residual_connection():
    [maps] = random_inputs((5, 7, 128))
    unit = BottleneckUnit(32)
    np.testing.assert_array_equal(to_numpy(unit(maps)), np.maximum(maps, 0))
    gammas = {path: value for path, value in canonical_weights(unit).items() if path.endswith("gamma")}
    assert {path: value.tolist() for path, value in gammas.items()} == {
        "norm_1/gamma": [1.0] * 32,
        "norm_2/gamma": [1.0] * 32,
        "norm_3/gamma": [0.0] * 128,
    }
    projecting = BottleneckUnit(32)
    projecting.build((None, 5, 7, 64))
    assert (canonical_weights(projecting)["projection_norm/gamma"] == 1).all()


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_group_norm_is_computed_in_float32(policy):
    # The values are exact in 16 bits, but their squares exceed float16 (65504), and bfloat16 cannot represent the mean.
    unit = BottleneckUnit(32, dtype=policy)
    unit.build((None, 5, 7, 64))
    rounding = 2.0**-9 if policy == "mixed_bfloat16" else 2.0**-12
    for norm in (unit.norm_1, unit.norm_2, unit.norm_3, unit.projection_norm):
        channels = norm.gamma.shape[0]
        maps = np.random.default_rng(0).choice([0.0, 600.0, 604.0, 1000.0], (2, 5, 7, channels))
        norm.set_weights([np.ones(channels), np.zeros(channels)])
        expected = reference.group_norm(maps, 1.0, 0.0)
        np.testing.assert_allclose(to_numpy(norm(maps)), expected, rtol=1.5 * rounding, atol=1.5 * rounding)


def test_macs():
    unit = BottleneckUnit(32, strides=2)
    unit.build((None, 5, 8, 64))
    places, half = 5 * 8, 3 * 4
    expected = places * 64 * 32 + half * 9 * 32 * 32 + half * 32 * 128 + half * 64 * 128
    assert unit.macs((None, 5, 8, 64)) == expected


def test_refuses_impossible_sizes():
    with pytest.raises(ValueError, match=r"width must be a multiple of 32, the number of groups. Received: 48"):
        BottleneckUnit(48)
