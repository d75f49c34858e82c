"""Assignments cost as little as those of SciPy."""

import numpy as np
import pytest
import scipy.optimize
from keras import ops

from tests.differentiation import compiled
from training.tasks.matching import match

pytestmark = pytest.mark.each_backend
N, M, Q = 9, 7, 11


def problems(kind):
    rng = np.random.default_rng(0)
    costs = rng.normal(size=(N, M, Q)).astype("float32")
    if kind == "contested":  # All objects prefer the same queries, so that chains of reassignments are long.
        costs = 0.1 * costs + rng.normal(size=(N, 1, Q)).astype("float32")
    if kind == "tied":
        costs = np.round(costs)
    is_object = rng.random((N, M)) < 0.7
    is_object[0], is_object[1] = False, True
    return costs, is_object


@pytest.mark.parametrize("kind", ["random", "contested", "tied", "square"])
def test_costs_are_the_lowest(kind):
    costs, is_object = problems(kind)
    costs = costs[..., :M] if kind == "square" else costs
    expected = np.zeros((N, M), int)
    for cost, is_valid, queries in zip(costs, is_object, expected, strict=True):
        queries[is_valid] = scipy.optimize.linear_sum_assignment(cost[is_valid])[1]
    found = ops.convert_to_numpy(compiled(match, jit_compile=kind == "contested")(costs, is_object))
    for queries, is_valid in zip(found, is_object, strict=True):
        assert len(set(queries[is_valid])) == is_valid.sum()
        assert not queries[~is_valid].any()
    chosen = (np.take_along_axis(costs, queries[..., None], axis=-1)[..., 0] for queries in (found, expected))
    np.testing.assert_allclose(*((each * is_object).sum(axis=1) for each in chosen), atol=1e-5)
    if kind != "tied":
        np.testing.assert_array_equal(found, expected)


def test_costs_that_are_not_finite_are_avoided():
    costs, is_object = problems("random")
    costs[:, 0, 1:], costs[:, 1, :-1], costs[2] = np.inf, np.nan, np.nan
    found = ops.convert_to_numpy(compiled(match)(costs, is_object))
    is_kept = is_object & (np.arange(N) != 2)[:, None]
    np.testing.assert_array_equal(found[:, :2][is_kept[:, :2]], np.tile([0, Q - 1], (N, 1))[is_kept[:, :2]])
    assert len(set(found[2][is_object[2]])) == is_object[2].sum()
