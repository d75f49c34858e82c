import numpy as np
import pytest

from keras_vit.layers import TokenMerging
from tests.reference import token_merging as reference
from tests.test_case import MIXED_POLICIES, assert_close, random_inputs, run_layer_test, to_numpy


@pytest.mark.each_backend
def test_layer(tmp_path):
    arguments = {"num_merged": 2, "num_prefix_tokens": 1}
    run_layer_test(TokenMerging, arguments, [(7, 12), (7, 4)], (5, 12), {}, tmp_path)


def _inputs(num_tokens, seed=0):
    """Tokens, their metric and their sizes."""
    tokens, metric = random_inputs((num_tokens, 5), (num_tokens, 4), batch=3, seed=seed)
    return tokens, metric, np.random.default_rng(seed).integers(1, 9, (3, num_tokens)).astype("int32")


# Even and odd numbers of prefix tokens, and requests to merge more than half of the patches.
@pytest.mark.parametrize(
    ("num_tokens", "prefix", "merged"), [(9, 1, 3), (8, 0, 3), (9, 2, 2), (12, 5, 9), (13, 1, 20), (2, 1, 3), (3, 2, 1)]
)
def test_equals_the_equations(num_tokens, prefix, merged):
    inputs = _inputs(num_tokens)
    expected = [
        reference.merge(*(x.astype("float64") for x in image), merged, prefix) for image in zip(*inputs, strict=True)
    ]
    tokens, sizes = TokenMerging(merged, prefix)(*inputs)
    for actual, values in ((tokens, [z for z, _ in expected]), (sizes, [s for _, s in expected])):
        assert_close(actual, np.stack(values))
    assert "int32" in str(sizes.dtype)
    np.testing.assert_array_equal(to_numpy(sizes).sum(1), inputs[2].sum(1))
    np.testing.assert_array_equal(to_numpy(tokens)[:, :prefix], inputs[0][:, :prefix])


def test_without_sizes_every_token_is_one():
    tokens, metric, sizes = _inputs(8)
    layer = TokenMerging(3)
    for actual, expected in zip(layer(tokens, metric), layer(tokens, metric, np.ones_like(sizes)), strict=True):
        np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))


def test_the_most_similar_pair_is_merged():
    # One even token has direction 0, and one odd token nearly has it. The length of the metric does not matter.
    metric = np.array([[[0, 9, 0], [0, 0, 9], [5, 0, 0], [1, 0.1, 0], [0, 0.5, 1], [-3, 0, 0]]], "float32")
    tokens = np.arange(6, dtype="float32").reshape(1, 6, 1)
    sizes = np.array([[1, 1, 3, 1, 1, 1]], "int32")
    merged, merged_sizes = TokenMerging(1)(tokens, metric, sizes)
    np.testing.assert_allclose(to_numpy(merged)[0, :, 0], [0, 4, 1, (3 * 2 + 3) / 4, 5])
    np.testing.assert_array_equal(to_numpy(merged_sizes)[0], [1, 1, 1, 4, 1])


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_sizes_and_means_are_exact_in_16_bits(policy):
    # bfloat16 cannot represent 257, and 300 x 400 exceeds float16.
    sizes = np.array([[257, 300]], "int32")
    tokens, sizes = TokenMerging(1, dtype=policy)(np.full((1, 2, 1), 400.0), np.ones((1, 2, 3)), sizes)
    np.testing.assert_array_equal(to_numpy(tokens), [[[400]]])
    np.testing.assert_array_equal(to_numpy(sizes), [[557]])


def test_macs():
    # Four tokens of A with four of B in 4 channels; three tokens of A into four of B in 12 channels.
    assert TokenMerging(3, 1).macs((None, 9, 12), (None, 9, 4)) == 4 * 4 * 4 + 4 * 3 * 12
    assert TokenMerging(3, 1).macs((None, 8, 12), (None, 8, 4)) == 3 * 4 * 4 + 4 * 3 * 12
