import numpy as np
import pytest

from keras_vit.layers import TokenPooling
from tests.test_case import random_inputs, run_layer_test, to_numpy


@pytest.mark.each_backend
def test_layer(tmp_path):
    run_layer_test(TokenPooling, {"index": 2}, [(7, 12)], (12,), {}, tmp_path)


@pytest.mark.parametrize("index", [0, 1, 6])
def test_picks_one_token(index):
    [tokens] = random_inputs((7, 12))
    np.testing.assert_array_equal(to_numpy(TokenPooling(index)(tokens)), tokens[:, index])


def test_picks_the_class_token_by_default():
    [tokens] = random_inputs((7, 12))
    np.testing.assert_array_equal(to_numpy(TokenPooling()(tokens)), tokens[:, 0])
