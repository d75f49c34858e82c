import functools

import pytest

from keras_vit.layers.convolutional.pre_activation_unit import PreActivationUnit
from tests.layers.convolutional.bottleneck_unit_test import MAPS
from tests.reference import bit_resnet as reference
from tests.test_case import canonical_weights, random_inputs, run_layer_test, run_parity_test

KERNELS = {"conv_1/kernel": (1, 1, 64, 32), "conv_2/kernel": (3, 3, 32, 32), "conv_3/kernel": (1, 1, 32, 128)}
KERNELS |= {"projection_conv/kernel": (1, 1, 64, 128)}
NORMS = {f"norm_{i}/{part}": (width,) for i, width in ((1, 64), (2, 32), (3, 32)) for part in ("gamma", "beta")}


def test_layer(tmp_path):
    run_layer_test(PreActivationUnit, {"width": 32, "strides": 2}, [(5, 8, 64)], (3, 4, 128), KERNELS | NORMS, tmp_path)


@pytest.mark.parametrize(("size", "strides", "channels", "projects"), MAPS)
def test_equals_the_reference(size, strides, channels, projects):
    unit = PreActivationUnit(32, strides)
    run_parity_test(unit, functools.partial(reference.pre_activation_unit, s=strides), random_inputs((*size, channels)))
    assert any("projection" in path for path in canonical_weights(unit)) == projects


def test_macs():
    places, half = 5 * 8, 3 * 4
    expected = places * 64 * 32 + half * 9 * 32 * 32 + half * 32 * 128 + half * 64 * 128
    unit = PreActivationUnit(32, strides=2)
    unit.build((None, 5, 8, 64))
    assert unit.macs((None, 5, 8, 64)) == expected


def test_refuses_impossible_sizes():
    with pytest.raises(ValueError, match=r"width must be a multiple of 32, the number of groups. Received: 48"):
        PreActivationUnit(48)
