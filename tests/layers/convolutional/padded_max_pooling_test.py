import numpy as np
import pytest

from keras_vit.layers.convolutional.padded_max_pooling import PaddedMaxPooling2D
from tests.reference.bit_resnet import windows_of_bit
from tests.test_case import assert_close, run_layer_test, to_numpy


@pytest.mark.on_torch
def test_layer(tmp_path):
    run_layer_test(PaddedMaxPooling2D, {"padding": "ignored"}, [(5, 8, 3)], (3, 4, 3), {}, tmp_path)


@pytest.mark.parametrize("size", [(6, 8), (5, 7), (1, 2)])
@pytest.mark.parametrize(("padding", "value"), [("zeros", 0), ("ignored", -np.inf)])
def test_equals_the_reference_where_all_is_below_zero_too(size, padding, value):
    maps = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    for shifted in (maps, maps - 10):
        pooled = to_numpy(PaddedMaxPooling2D(padding)(shifted))
        assert_close(pooled, windows_of_bit(shifted, 3, 2, value).max((-1, -2)))
    assert (np.abs(pooled[:, 0]) < 1e-5).all() == (padding == "zeros")  # At the border.


def test_refuses_unknown_paddings():
    with pytest.raises(ValueError, match=r"padding must be one of 'zeros', 'ignored'. Received: 'same'"):
        PaddedMaxPooling2D("same")
