import numpy as np
import pytest

from keras_vit.layers import AverageTokenPooling
from tests.test_case import MIXED_POLICIES, assert_close, random_inputs, run_layer_test, run_parity_test, to_numpy


@pytest.mark.each_backend
def test_layer(tmp_path):
    run_layer_test(AverageTokenPooling, {"num_prefix_tokens": 1}, [(7, 12)], (12,), {}, tmp_path)


@pytest.mark.parametrize("num_prefix_tokens", [0, 1, 2])
def test_leaves_out_the_tokens_in_front(num_prefix_tokens):
    run_parity_test(
        AverageTokenPooling(num_prefix_tokens),
        lambda tokens, weights: tokens[:, num_prefix_tokens:].mean(1),
        random_inputs((7, 12)),
    )


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_sums_in_float32(policy):
    # The sum, 120,000, exceeds float16. In bfloat16, the sum would stall at 256 times the summand.
    output = AverageTokenPooling(dtype=policy)(np.full((1, 1000, 2), 120.0))
    np.testing.assert_allclose(to_numpy(output), 120.0)


def test_weights_tokens_by_their_sizes():
    [tokens] = random_inputs((7, 12))
    sizes = np.random.default_rng(1).integers(1, 9, (2, 7)).astype("int32")
    expected = np.stack([np.average(z[2:], axis=0, weights=s[2:]) for z, s in zip(tokens, sizes, strict=True)])
    assert_close(AverageTokenPooling(2)(tokens, sizes), expected)
