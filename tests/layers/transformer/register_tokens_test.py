import numpy as np
import pytest

from keras_vit.layers import RegisterTokens
from tests.test_case import built, canonical_weights, random_inputs, randomize, run_layer_test, to_numpy


@pytest.mark.each_backend
def test_layer(tmp_path):
    run_layer_test(
        RegisterTokens, {"num_tokens": 4, "stddev": 0.1}, [(6, 12)], (10, 12), {"tokens": (1, 4, 12)}, tmp_path
    )


def test_stand_before_the_other_tokens():
    layer = randomize(built(RegisterTokens(4), (6, 12)))
    [tokens] = random_inputs((6, 12), batch=3)
    registers = canonical_weights(layer)["tokens"].astype("float32")
    output = to_numpy(layer(tokens))
    np.testing.assert_array_equal(output, np.concatenate([np.repeat(registers, 3, axis=0), tokens], axis=1))


def test_start_normal():
    registers = canonical_weights(built(RegisterTokens(16), (6, 96)))["tokens"]
    assert registers.std() == pytest.approx(1e-6, rel=0.05)
    assert len(np.unique(registers)) > 16 * 96 // 2  # Each token has its own random values.


def test_unknown_number_of_tokens():
    assert RegisterTokens(4).compute_output_shape((None, None, 12)) == (None, None, 12)
