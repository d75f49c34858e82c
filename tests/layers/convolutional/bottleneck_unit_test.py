import functools

import keras
import numpy as np
import pytest

from keras_vit.layers.convolutional.bottleneck_unit import BottleneckUnit
from tests.reference import bit_resnet as reference
from tests.test_case import (
    MIXED_POLICIES,
    assert_close,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    run_parity_test,
    to_numpy,
)

CONVS = {"conv_1": (1, 1, 64, 32), "conv_2": (3, 3, 32, 32), "conv_3": (1, 1, 32, 128)}
PROJECTION = {"projection_conv": (1, 1, 64, 128)}
# (map size, strides, channels of the maps, whether the unit projects them). Strides of 2: sides of each parity.
MAPS = [
    ((6, 8), 1, 128, False),
    ((5, 7), 1, 64, True),
    ((6, 8), 2, 128, True),
    ((5, 7), 2, 256, True),
    ((8, 3), 2, 128, True),
]


def _weight_shapes(convs):
    kernels = {f"{conv}/kernel": shape for conv, shape in convs.items()}
    norms = {conv.replace("conv", "norm"): shape[-1:] for conv, shape in convs.items()}
    return kernels | {f"{norm}/{part}": shape for norm, shape in norms.items() for part in ("gamma", "beta")}


@pytest.mark.each_backend
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
    unit = BottleneckUnit(32, strides)
    run_parity_test(unit, functools.partial(reference.bottleneck_unit, s=strides), random_inputs((*size, channels)))
    assert any("projection" in path for path in canonical_weights(unit)) == projects


@pytest.mark.slow
@pytest.mark.parametrize("strides", [1, 2])
def test_a_map_does_not_depend_on_its_batch(strides):
    [maps] = random_inputs((5, 7, 64), batch=3)
    unit = BottleneckUnit(32, strides)
    unit.build(maps.shape)
    randomize(unit)
    expected = to_numpy(unit(maps[1:2]))
    assert_close(unit(maps)[1:2], expected)
    maps[[0, 2]] *= 9
    assert_close(unit(maps)[1:2], expected)


@pytest.mark.slow
def test_epsilons():
    # Large enough that each epsilon changes the result.
    [maps] = random_inputs((5, 7, 64))
    epsilons = {"epsilon": 0.5, "std_epsilon": 0.25}
    unit = BottleneckUnit(32, group_norm_epsilon=0.5, weight_standardization_epsilon=0.25)
    run_parity_test(unit, functools.partial(reference.bottleneck_unit, **epsilons), [maps])
    for other in ({"epsilon": 0.5}, {"std_epsilon": 0.25}):
        expected = reference.bottleneck_unit(maps.astype("float64"), canonical_weights(unit), **other)
        assert not np.allclose(to_numpy(unit(maps)), expected, atol=1e-2)


@pytest.mark.slow
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


@pytest.mark.parametrize("norm", ["norm_1", "norm_2", "norm_3", "projection_norm"])
@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_group_norm_is_computed_in_float32(policy, norm):
    # The values are exact in 16 bits, but their squares exceed float16 (65504), and bfloat16 cannot represent the mean.
    unit = BottleneckUnit(32, dtype=policy)
    unit.build((None, 5, 7, 64))
    layer = getattr(unit, norm)
    channels = layer.gamma.shape[0]
    maps = np.random.default_rng(0).choice([0.0, 600.0, 604.0, 1000.0], (2, 5, 7, channels))
    layer.set_weights([np.ones(channels), np.zeros(channels)])
    rounding = 2.0**-9 if policy == "mixed_bfloat16" else 2.0**-12
    expected = reference.group_norm(maps, 1.0, 0.0)
    np.testing.assert_allclose(to_numpy(layer(maps)), expected, rtol=1.5 * rounding, atol=1.5 * rounding)


def test_macs():
    unit = BottleneckUnit(32, strides=2)
    unit.build((None, 5, 8, 64))
    places, half = 5 * 8, 3 * 4
    expected = places * 64 * 32 + half * 9 * 32 * 32 + half * 32 * 128 + half * 64 * 128
    assert unit.macs((None, 5, 8, 64)) == expected


@pytest.mark.slow
def test_size_may_be_unknown():
    unit = BottleneckUnit(32, strides=2)
    inputs = keras.Input((None, None, 64))
    model = keras.Model(inputs, unit(inputs))
    assert model.output_shape == (None, None, None, 128)
    for size in ((5, 8), (6, 3)):
        [maps] = random_inputs((*size, 64))
        assert_close(model(maps), to_numpy(unit(maps)))


def test_refuses_impossible_sizes():
    with pytest.raises(ValueError, match=r"width must be a multiple of 32, the number of groups. Received: 48"):
        BottleneckUnit(48)
