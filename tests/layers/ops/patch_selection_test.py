import numpy as np
import pytest
from keras import ops

from keras_vit.layers.ops.patch_selection import select_patches, share_of
from keras_vit.pretraining.masking import ranks
from tests.test_case import to_numpy


@pytest.mark.parametrize(("number", "share", "expected"), [(10, 1 - 0.9, 1), (10, 0.1, 1), (49, 0.25, 12), (7, 0.3, 2)])
def test_share_of(number, share, expected):
    assert share_of(number, share) == expected
    assert to_numpy(share_of(ops.convert_to_tensor(number), share)) == expected


@pytest.mark.parametrize("order", [lambda noise: noise, ranks])
def test_keep_patches(order):
    tokens = np.arange(2 * 7 * 3).reshape(2, 7, 3).astype("float32")  # Two prefix tokens and five patches.
    noise = np.array([[0.3, 0.1, 0.9, 0.2, 0.8], [0.5, 0.6, 0.4, 0.1, 0.7]], "float32")
    kept = to_numpy(select_patches(ops.convert_to_tensor(tokens), order(ops.convert_to_tensor(noise)), 2, 2))
    np.testing.assert_array_equal(kept[0], tokens[0, [0, 1, 3, 5]])
    np.testing.assert_array_equal(kept[1], tokens[1, [0, 1, 5, 4]])
