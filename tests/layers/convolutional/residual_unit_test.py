import functools

import numpy as np
import pytest

from keras_vit.layers import ResidualUnit
from tests.reference import visual_transformer as reference
from tests.test_case import (
    assert_close,
    canonical_weights,
    norm_shapes,
    random_inputs,
    randomize,
    run_layer_test,
    run_parity_test,
    to_numpy,
)

BOTTLENECK = {"conv_1": (1, 1, 6, 5), "conv_2": (3, 3, 5, 5), "conv_3": (1, 1, 5, 20), "projection_conv": (1, 1, 6, 20)}


@pytest.mark.on_torch
def test_layer(tmp_path):
    arguments = {"width": 5, "strides": 2, "expansion": 4, "strides_first": True, "drop_path_rate": 0.3}
    arguments |= {"mixing": "convolution", "attention": None}
    shapes = {f"{conv}/kernel": shape for conv, shape in BOTTLENECK.items()}
    for conv, shape in BOTTLENECK.items():
        shapes |= norm_shapes(conv.replace("conv", "norm"), shape[-1])
    run_layer_test(ResidualUnit, arguments, [(5, 8, 6)], (3, 4, 20), shapes, tmp_path, scale=0.5)


# Strides of 2 occur with each kind of unit and each position of the strides.
@pytest.mark.parametrize(
    ("strides", "keeps_channels", "expansion", "strides_first", "size"),
    [
        *((1, True, 4, False, (6, 8)), (1, False, 1, True, (5, 3))),
        *((2, False, 4, False, (5, 3)), (2, True, 4, True, (6, 8)), (2, True, 1, False, (6, 8))),
    ],
)
def test_equals_the_reference(strides, keeps_channels, expansion, strides_first, size):
    unit = ResidualUnit(3, strides, expansion, strides_first)
    equation = functools.partial(reference.residual_unit, s=strides, strides_first=strides_first)
    run_parity_test(unit, equation, random_inputs((*size, 3 * expansion if keeps_channels else 7)))
    projects = any("projection" in path for path in canonical_weights(unit))
    assert projects == (strides == 2 or not keeps_channels)


@pytest.mark.parametrize("expansion", [4, 1])
def test_starts_as_the_residual_connection(expansion):
    [maps] = random_inputs((5, 7, 3 * expansion))
    np.testing.assert_array_equal(to_numpy(ResidualUnit(3, expansion=expansion)(maps)), np.maximum(maps, 0))


def test_stochastic_depth():
    """The branch of a whole image is either dropped or divided by the share of images that keep their branch."""
    [maps] = random_inputs((5, 7, 12), batch=40)
    unit = ResidualUnit(3, drop_path_rate=0.25)
    unit.build(maps.shape)
    randomize(unit, scale=0.5)
    unit.trainable = False  # Normalisation then uses the same statistics in training.
    kept = to_numpy(unit(maps))
    output = to_numpy(unit(maps, training=True))
    is_dropped = (output == np.maximum(maps, 0)).all((1, 2, 3))
    assert 2 < is_dropped.sum() < 20
    # The branches that are kept are divided by 0.75. Compared where both sums are positive, so that ReLU hides nothing.
    both = (output > 0) & (kept > 0) & ~is_dropped[:, None, None, None]
    assert both.sum() > 100
    assert_close((output - maps)[both], ((kept - maps) / 0.75)[both])


def test_macs():
    unit = ResidualUnit(3, 2)
    unit.build((None, 5, 8, 6))
    places, half = 5 * 8, 3 * 4
    assert unit.macs((None, 5, 8, 6)) == places * 6 * 3 + half * (9 * 3 * 3 + 3 * 12 + 6 * 12)
    first = ResidualUnit(3, 2, strides_first=True)
    first.build((None, 5, 8, 6))
    assert first.macs((None, 5, 8, 6)) == half * (6 * 3 + 9 * 3 * 3 + 3 * 12 + 6 * 12)
    basic = ResidualUnit(3, expansion=1)
    basic.build((None, 5, 8, 3))
    assert basic.macs((None, 5, 8, 3)) == 2 * places * 9 * 3 * 3


def test_refuses_impossible_arguments():
    with pytest.raises(ValueError, match=r"expansion must be 4 \(bottleneck\) or 1 \(basic unit\). Received: 2"):
        ResidualUnit(3, expansion=2)
