import numpy as np
import pytest

from keras_vit.layers import ClassToken
from tests.test_case import canonical_weights, random_inputs, randomize, run_layer_test, to_numpy


@pytest.mark.each_backend
def test_layer(tmp_path):
    run_layer_test(ClassToken, {}, [(6, 12)], (7, 12), {"token": (1, 1, 12)}, tmp_path)


def test_stands_before_the_other_tokens_and_starts_at_zero():
    layer = ClassToken()
    [tokens] = random_inputs((6, 12), batch=3)
    output = to_numpy(layer(tokens))
    assert not output[:, 0].any()
    np.testing.assert_array_equal(output[:, 1:], tokens)
    token = canonical_weights(randomize(layer))["token"].astype("float32")
    output = to_numpy(layer(tokens))
    np.testing.assert_array_equal(output, np.concatenate([np.repeat(token, 3, axis=0), tokens], axis=1))


def test_unknown_number_of_tokens():
    assert ClassToken().compute_output_shape((None, None, 12)) == (None, None, 12)
