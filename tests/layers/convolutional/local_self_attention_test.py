import functools

import numpy as np
import pytest

from keras_vit.layers.convolutional.local_self_attention import LocalSelfAttention
from keras_vit.layers.ops.maps import is_inside_map, local_windows
from tests.reference import resnet_baselines as reference
from tests.test_case import random_inputs, run_layer_test, run_parity_test, to_numpy


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = {f"{part}/kernel": (5, 12) for part in ("query", "key", "value")}
    shapes |= {"row_embedding": (3, 5, 2), "column_embedding": (3, 5, 2)}
    arguments = {"filters": 12, "window_size": 5, "strides": 2, "num_heads": 3}
    run_layer_test(LocalSelfAttention, arguments, [(4, 7, 5)], (2, 4, 12), shapes, tmp_path)


# Windows larger than the map, maps of one line, and squares that do not divide the map.
@pytest.mark.parametrize(
    ("size", "window_size", "strides", "num_heads"), [*(((4, 7), 3, 1, 3), ((5, 8), 3, 2, 1)), ((1, 3), 7, 3, 2)]
)
def test_equals_the_equation(size, window_size, strides, num_heads):
    layer = LocalSelfAttention(12, window_size, strides, num_heads)
    equation = functools.partial(reference.local_self_attention, n=window_size, s=strides, k=num_heads)
    run_parity_test(layer, equation, random_inputs((*size, 5)))


def test_macs():
    # MACs at 28 positions: three projections, and 12 channels twice with each of the 9 positions of a window.
    assert LocalSelfAttention(12, 3, 2, 3).macs((None, 4, 7, 5)) == 28 * (3 * 5 * 12 + 9 * 2 * 12)


def test_refuses_impossible_arguments():
    with pytest.raises(ValueError, match=r"filters must be a multiple of 2 [*] num_heads.*Received: filters=9, num_he"):
        LocalSelfAttention(9, num_heads=3)
    with pytest.raises(ValueError, match=r"window_size must be odd.*Received: 4"):
        LocalSelfAttention(12, 4)


@pytest.mark.parametrize(("size", "strides", "padding"), [(3, 1, "constant"), (5, 2, "reflect"), (1, 3, "reflect")])
def test_windows_are_those_of_numpy(size, strides, padding):
    [maps] = random_inputs((5, 8, 3))
    margin = (size // 2,) * 2
    padded = np.pad(maps, ((0, 0), margin, margin, (0, 0)), mode=padding)
    views = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))[:, ::strides, ::strides]
    expected = views.transpose(0, 1, 2, 4, 5, 3).reshape(2, *views.shape[1:3], size**2, 3)
    np.testing.assert_array_equal(to_numpy(local_windows(maps, size, strides, padding)), expected)


def test_inside():
    [maps] = random_inputs((3, 4, 2))
    inside = to_numpy(is_inside_map(maps, 3))[0, ..., 0].reshape(3, 4, 3, 3)
    np.testing.assert_array_equal(inside[0, 0], [[0, 0, 0], [0, 1, 1], [0, 1, 1]])
    np.testing.assert_array_equal(inside[1, 2], np.ones((3, 3)))
    np.testing.assert_array_equal(inside[2, 3], [[1, 1, 0], [1, 1, 0], [0, 0, 0]])
