import numpy as np
import pytest

from keras_vit.layers import LayerScale
from tests.test_case import built, canonical_weights, random_inputs, run_layer_test, run_parity_test


@pytest.mark.each_backend
def test_layer(tmp_path):
    run_layer_test(LayerScale, {"initial_value": 0.25}, [(7, 12)], (7, 12), {"gamma": (12,)}, tmp_path)


def test_multiplies_each_channel_by_its_factor():
    def scale(branch, weights):
        return np.stack([branch[..., channel] * factor for channel, factor in enumerate(weights["gamma"])], axis=-1)

    run_parity_test(LayerScale(0.25), scale, random_inputs((7, 12)))


def test_starts_at_the_initial_value():
    np.testing.assert_array_equal(canonical_weights(built(LayerScale(0.25)))["gamma"], np.full(12, 0.25))
