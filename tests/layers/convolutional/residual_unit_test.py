import functools

import keras
import numpy as np
import pytest

from keras_vit.layers import ResidualUnit
from tests.layers.convolutional.pointwise_convolution_test import norm_shapes
from tests.reference import visual_transformer as reference
from tests.test_case import (
    assert_close,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    run_parity_test,
    to_numpy,
)

BOTTLENECK = {"conv_1": (1, 1, 6, 5), "conv_2": (3, 3, 5, 5), "conv_3": (1, 1, 5, 20), "projection_conv": (1, 1, 6, 20)}
BASIC = {"conv_1": (3, 3, 6, 5), "conv_2": (3, 3, 5, 5), "projection_conv": (1, 1, 6, 5)}


def weight_shapes(convs):
    shapes = {f"{conv}/kernel": shape for conv, shape in convs.items()}
    for conv, shape in convs.items():
        shapes |= norm_shapes(conv.replace("conv", "norm"), shape[-1])
    return shapes


@pytest.mark.parametrize("expansion", [pytest.param(4, marks=pytest.mark.each_backend), 1])
def test_layer(expansion, tmp_path):
    arguments = {"width": 5, "strides": 2, "expansion": expansion, "strides_first": True, "drop_path_rate": 0.3}
    arguments |= {"mixing": "convolution", "attention": None}
    shapes = weight_shapes(BOTTLENECK if expansion == 4 else BASIC)
    run_layer_test(ResidualUnit, arguments, [(5, 8, 6)], (3, 4, 5 * expansion), shapes, tmp_path, scale=0.5)


# Each pair of values occurs. Strides of 2 occur with each kind of unit and each position of the strides.
@pytest.mark.parametrize(
    ("strides", "keeps_channels", "expansion", "strides_first", "size"),
    [
        pytest.param(1, True, 4, False, (6, 8), marks=pytest.mark.slow),
        (1, True, 1, True, (5, 3)),
        pytest.param(1, False, 4, True, (5, 3), marks=pytest.mark.slow),
        (1, False, 1, False, (6, 8)),
        pytest.param(2, True, 4, True, (6, 8), marks=pytest.mark.slow),
        pytest.param(2, True, 1, False, (5, 3), marks=pytest.mark.slow),
        pytest.param(2, False, 4, False, (5, 3), marks=pytest.mark.slow),
        pytest.param(2, False, 1, True, (6, 8), marks=pytest.mark.slow),
    ],
)
def test_equals_the_reference(strides, keeps_channels, expansion, strides_first, size):
    unit = ResidualUnit(3, strides, expansion, strides_first)
    equation = functools.partial(reference.residual_unit, s=strides, strides_first=strides_first)
    run_parity_test(unit, equation, random_inputs((*size, 3 * expansion if keeps_channels else 7)))
    projects = any("projection" in path for path in canonical_weights(unit))
    assert projects == (strides == 2 or not keeps_channels)


@pytest.mark.slow
def test_where_the_strides_stand_matters():
    [maps] = random_inputs((6, 8, 7))
    first, second = (randomize(_built(ResidualUnit(3, 2, strides_first=first), maps)) for first in (True, False))
    assert np.abs(to_numpy(first(maps)) - to_numpy(second(maps))).max() > 0.01


def _built(unit, maps):
    unit.build(maps.shape)
    return unit


@pytest.mark.parametrize("expansion", [4, 1])
def test_starts_as_the_residual_connection(expansion):
    [maps] = random_inputs((5, 7, 3 * expansion))
    np.testing.assert_array_equal(to_numpy(ResidualUnit(3, expansion=expansion)(maps)), np.maximum(maps, 0))


@pytest.mark.slow
def test_stochastic_depth():
    """The branch of a whole image is either dropped or divided by the share of images that keep their branch."""
    [maps] = random_inputs((5, 7, 12), batch=40)
    unit = randomize(_built(ResidualUnit(3, drop_path_rate=0.25), maps), scale=0.5)
    unit.trainable = False  # Normalisation then uses the same statistics in training.
    kept = to_numpy(unit(maps))
    output = to_numpy(unit(maps, training=True))
    is_dropped = (output == np.maximum(maps, 0)).all((1, 2, 3))
    assert 2 < is_dropped.sum() < 20
    # The branches that are kept are divided by 0.75. Compared where both sums are positive, so that ReLU hides nothing.
    both = (output > 0) & (kept > 0) & ~is_dropped[:, None, None, None]
    assert both.sum() > 100
    assert_close((output - maps)[both], ((kept - maps) / 0.75)[both])


@pytest.mark.slow
def test_in_training_statistics_are_those_of_the_batch():
    [maps] = random_inputs((5, 7, 6), batch=5)
    unit = ResidualUnit(3, 2)
    unit(3 * maps + 1, training=True)
    moved = {path: array for path, array in canonical_weights(unit).items() if "moving" in path}
    projected = (3 * maps.astype("float64") + 1) @ canonical_weights(unit)["conv_1/kernel"][0, 0]
    assert_close(moved["norm_1/moving_mean"], 0.1 * projected.mean((0, 1, 2)))
    assert all(np.abs(array).max() > 1e-3 for array in moved.values())


@pytest.mark.slow
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


@pytest.mark.slow
def test_size_may_be_unknown():
    unit = ResidualUnit(3, 2)
    inputs = keras.Input((None, None, 6))
    model = keras.Model(inputs, unit(inputs))
    assert model.output_shape == (None, None, None, 12)
    for size in ((5, 8), (6, 3)):
        [maps] = random_inputs((*size, 6))
        assert_close(model(maps), to_numpy(unit(maps)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expansion": 2}, r"expansion must be 4 \(bottleneck\) or 1 \(basic unit\). Received: 2"),
        ({"drop_path_rate": 1.0}, "rate must be .*Received: 1.0"),
    ],
)
def test_refuses_impossible_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ResidualUnit(**{"width": 3, **arguments})
