import numpy as np
import pytest
from PIL import Image

from keras_vit.layers.convolutional.upsample_like import UpsampleLike
from tests.test_case import assert_close, random_inputs, run_layer_test, to_numpy

PILLOW = {"bilinear": Image.Resampling.BILINEAR, "nearest": Image.Resampling.NEAREST}


@pytest.mark.on_torch
def test_layer(tmp_path):
    arguments = {"scale": 2, "interpolation": "nearest"}
    run_layer_test(UpsampleLike, arguments, [(3, 4, 5), (5, 8, 2)], (5, 8, 5), {}, tmp_path)


@pytest.mark.parametrize("interpolation", PILLOW)
@pytest.mark.parametrize(("size", "scale"), [((3, 5), 1), ((3, 5), 3), ((1, 2), 4)])
def test_equals_pillow(size, scale, interpolation):
    [maps] = random_inputs((*size, 3))
    height, width = (scale * side for side in size)
    expected = np.empty((2, height, width, 3))
    for row, channel in np.ndindex(2, 3):
        picture = Image.fromarray(maps[row, :, :, channel])
        expected[row, :, :, channel] = picture.resize((width, height), PILLOW[interpolation])
    layer = UpsampleLike(scale, interpolation)
    assert_close(layer(maps, expected), expected)
    # Surplus rows and columns are cut off at the bottom and right.
    assert_close(
        layer(maps, expected[:, : height - scale + 1, : width - scale + 1]),
        to_numpy(layer(maps, expected))[:, : height - scale + 1, : width - scale + 1],
    )


def test_refuses_unknown_interpolations():
    with pytest.raises(ValueError, match=r"interpolation must be one of 'bilinear', 'nearest'. Received: 'bicubic'"):
        UpsampleLike(2, "bicubic")
