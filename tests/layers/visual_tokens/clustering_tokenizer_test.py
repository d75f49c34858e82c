import functools

import keras
import numpy as np
import pytest

from keras_vit.layers import ClusteringTokenizer
from keras_vit.layers.ops.maps import squarest_grid
from tests.layers.convolutional.pointwise_convolution_test import projection_shapes
from tests.reference import visual_transformer as reference
from tests.test_case import (
    MIXED_POLICIES,
    assert_close,
    gradients,
    random_inputs,
    randomize,
    run_layer_test,
    run_parity_test,
    to_numpy,
)

PUBLISHED = {"token_dim": 10, "group_width": 2, "use_batch_norm": True}


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = projection_shapes("value", 6, 6, 3) | projection_shapes("projection", 6, 10)
    arguments = {"num_tokens": 4, "num_iterations": 2, **PUBLISHED}
    run_layer_test(ClusteringTokenizer, arguments, [(5, 7, 6)], (4, 10), shapes, tmp_path)


@pytest.mark.parametrize(("num_tokens", "grid", "steps"), [(6, (2, 3), 1), (6, (2, 3), 6), (5, (1, 5), 3)])
def test_centres_are_those_of_lloyds_algorithm(num_tokens, grid, steps):
    [maps] = random_inputs((5, 7, 6))
    centres = to_numpy(ClusteringTokenizer(num_tokens, num_iterations=steps).centres(maps))
    assert_close(centres, reference.centres(maps.astype("float64"), grid, steps))
    assert_close(np.linalg.norm(centres, axis=-1), np.ones((2, num_tokens)))


def test_a_centre_without_pixels_stays():
    """If all pixels have one colour, all are nearest to the first centre. A map of zeros is not divided by zero."""
    for maps in (np.ones((1, 4, 6, 3), "float32"), np.zeros((1, 4, 6, 3), "float32")):
        expected = np.tile(maps[:, 0, :1], (1, 4, 1)) / 3**0.5
        assert_close(ClusteringTokenizer(4).centres(maps), expected)


@pytest.mark.parametrize("changes", [{}, {"token_dim": None, "use_batch_norm": False, "group_width": None}])
def test_equals_the_reference(changes):
    layer = ClusteringTokenizer(6, num_iterations=2, **{**PUBLISHED, **changes})
    equation = functools.partial(reference.clustering_tokenizer, grid=(2, 3), steps=2)
    run_parity_test(layer, equation, random_inputs((5, 7, 6)))
    assert layer.compute_output_shape((None, 5, 7, 6)) == (None, 6, layer.token_dim or 6)


def _behind(*layers):
    return keras.Sequential([keras.Input((5, 7, 6)), *layers])


def test_no_gradient_goes_through_the_assignment():
    """Preceding layers get the same gradient as with constant centres."""

    class Given(ClusteringTokenizer):
        def centres(self, maps):
            return found

    [maps] = random_inputs((5, 7, 6))
    before = keras.layers.Dense(6, use_bias=False)
    before.build(maps.shape)
    randomize(before)
    found = ClusteringTokenizer(4).centres(before(maps))
    expected, actual = (gradients(_behind(before, cls(4)), [maps]) for cls in (Given, ClusteringTokenizer))
    [(path, gradient)] = actual.items()
    assert np.abs(gradient).max() > 1e-4
    assert_close(gradient, expected[path])


def test_weights_are_shares_of_the_pixels():
    [maps] = random_inputs((5, 7, 6))
    weights = to_numpy(ClusteringTokenizer(4).attention_weights(maps))
    assert weights.shape == (2, 1, 35, 4)
    assert_close(weights.sum(2), np.ones((2, 1, 4)))


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_clusters_in_float32(policy):
    [maps] = random_inputs((5, 7, 6))
    centres = ClusteringTokenizer(4, dtype=policy).centres(maps)
    assert keras.backend.standardize_dtype(centres.dtype) == "float32"
    assert_close(centres, to_numpy(ClusteringTokenizer(4).centres(maps)))


def test_macs():
    layer = ClusteringTokenizer(4, num_iterations=2)
    layer.build((None, 5, 7, 6))
    # Each step compares pixels with centres and sums pixels. Then come the logits and the weighted sums.
    assert layer.macs((None, 5, 7, 6)) == (2 * 2 + 1 + 1) * 35 * 6 * 4


@pytest.mark.parametrize(("number", "grid"), [(16, (4, 4)), (6, (2, 3)), (32, (4, 8)), (7, (1, 7)), (1, (1, 1))])
def test_the_grid_that_centres_start_at(number, grid):
    assert squarest_grid(number) == grid
