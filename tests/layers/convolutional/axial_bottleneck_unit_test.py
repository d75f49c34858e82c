import functools

import numpy as np
import pytest

from keras_vit.layers.convolutional.axial_bottleneck_unit import AxialBottleneckUnit
from tests.reference import axial_resnet as reference
from tests.test_case import canonical_weights, norm_shapes, random_inputs, run_layer_test, run_parity_test, to_numpy


def _attention_shapes(name, length):
    shapes = {f"{name}/projection/kernel": (12, 24), f"{name}/relative_embedding": (2 * length - 1, 8)}
    for norm, channels in (("projection_norm", 24), ("logit_norm", 9), ("output_norm", 24)):
        shapes |= norm_shapes(f"{name}/{norm}", channels)
    return shapes


@pytest.mark.slow
def test_layer(tmp_path):
    shapes = {"conv_1/kernel": (1, 1, 5, 12), "conv_2/kernel": (1, 1, 12, 24), "projection_conv/kernel": (1, 1, 5, 24)}
    shapes |= norm_shapes("norm_1", 12) | norm_shapes("norm_2", 24) | norm_shapes("projection_norm", 24)
    shapes |= _attention_shapes("height_attention", 4) | _attention_shapes("width_attention", 6)
    arguments = {"width": 12, "strides": 2, "num_heads": 3}
    run_layer_test(AxialBottleneckUnit, arguments, [(4, 6, 5)], (2, 3, 24), shapes, tmp_path, scale=0.7)


@pytest.mark.parametrize(("strides", "channels", "projects"), [(1, 24, False), (2, 5, True)])
def test_equals_the_reference(strides, channels, projects):
    unit = AxialBottleneckUnit(12, strides, 3)
    equation = functools.partial(reference.axial_unit, s=strides, k=3)
    run_parity_test(unit, equation, random_inputs((2 * strides, 3 * strides, channels)))
    assert any("projection_conv" in path for path in canonical_weights(unit)) == projects


def test_starts_as_the_residual_connection():
    [maps] = random_inputs((4, 6, 24))
    unit = AxialBottleneckUnit(12, num_heads=3)
    np.testing.assert_array_equal(to_numpy(unit(maps)), np.maximum(maps, 0))


def test_macs():
    unit = AxialBottleneckUnit(12, 2, 3)
    unit.build((None, 4, 6, 5))
    # At every position: the first convolution, both projections, and attention along lines of 4 and 6 positions. At a
    # quarter of the positions: the last convolution and the residual projection.
    expected = 24 * (5 * 12 + 2 * 12 * 24 + (4 + 6) * 3 * (3 * 2 + 2 * 4)) + 6 * (12 * 24 + 5 * 24)
    assert unit.macs((None, 4, 6, 5)) == expected


@pytest.mark.parametrize("size", [(5, 6), (4, 7), (None, 6)])
def test_refuses_sizes_that_it_has_no_tables_for(size):
    with pytest.raises(ValueError, match=r"known height and width that are multiples of its strides, 2. Received"):
        AxialBottleneckUnit(12, 2, 3).build((None, *size, 5))
