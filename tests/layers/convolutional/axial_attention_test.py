import functools
import math

import pytest

from keras_vit.layers.convolutional.axial_attention import AxialAttention
from tests.reference import axial_resnet as reference
from tests.test_case import canonical_weights, norm_shapes, random_inputs, run_layer_test, run_parity_test


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = {"projection/kernel": (5, 24), "relative_embedding": (13, 8)}
    shapes |= norm_shapes("projection_norm", 24) | norm_shapes("logit_norm", 9) | norm_shapes("output_norm", 24)
    arguments = {"axis": "width", "filters": 12, "num_heads": 3}
    run_layer_test(AxialAttention, arguments, [(4, 7, 5)], (4, 7, 12), shapes, tmp_path)


@pytest.mark.parametrize(
    ("axis", "size", "filters", "num_heads"),
    [("height", (4, 7), 12, 3), ("width", (6, 5), 8, 1), ("height", (1, 3), 8, 4)],
)
def test_equals_the_equation(axis, size, filters, num_heads):
    layer = AxialAttention(axis, filters, num_heads)
    equation = functools.partial(reference.axial_attention, axis=axis, k=num_heads)
    run_parity_test(layer, equation, random_inputs((*size, 5)))


def test_initial_values():
    layer = AxialAttention("width", 256, 2)
    layer.build((None, 4, 30, 64))
    weights = canonical_weights(layer)
    assert weights["projection/kernel"].std() == pytest.approx(1 / math.sqrt(64), rel=0.05)
    assert weights["relative_embedding"].std() == pytest.approx(1 / math.sqrt(128), rel=0.05)


def test_macs():
    # MACs at 28 positions: 5 x 24 products of the projection; with each of the 7 positions of a line, each of the 3
    # heads computes three terms of 2 products and two terms of 4.
    assert AxialAttention("width", 12, 3).macs((None, 4, 7, 5)) == 28 * (5 * 24 + 7 * 3 * (3 * 2 + 2 * 4))
    assert AxialAttention("height", 12, 3).macs((None, 4, 7, 5)) == 28 * (5 * 24 + 4 * 3 * (3 * 2 + 2 * 4))


def test_refuses_what_it_has_no_tables_for():
    layer = AxialAttention("height", 12, 3)
    with pytest.raises(ValueError, match=r"the height of its maps, so the height must be known. Received: maps of sh"):
        layer.build((None, None, 6, 5))
    [maps] = random_inputs((4, 6, 5))
    layer(maps)
    layer(maps[:, :, :2])
    with pytest.raises(ValueError, match=r"was built for maps of height 4. Received: height 3"):
        layer(maps[:, :3])


def test_refuses_impossible_arguments():
    with pytest.raises(ValueError, match=r"axis must be one of 'height', 'width'. Received: 'rows'"):
        AxialAttention("rows", 12, 3)
    with pytest.raises(ValueError, match=r"filters must be a multiple of 2 [*] num_heads.*Received: filters=9, num_he"):
        AxialAttention("width", 9, 3)
