import math

import numpy as np
import pytest

from keras_vit.layers import PaddedConv2D
from tests.reference.bit_resnet import windows_of_bit
from tests.test_case import TENSORFLOW, canonical_weights, random_inputs, run_layer_test, run_parity_test, to_numpy


@pytest.mark.on_torch
def test_layer(tmp_path):
    arguments = {"filters": 4, "kernel_size": 3, "strides": 2}
    run_layer_test(PaddedConv2D, arguments, [(5, 8, 3)], (3, 4, 4), {"kernel": (3, 3, 3, 4)}, tmp_path)


# Even sides, odd sides, one of each, and sides smaller than the kernel.
@pytest.mark.parametrize(
    ("size", "kernel_size", "strides"),
    [
        ((6, 8), 1, 1),
        ((5, 7), 1, 2),
        ((8, 3), 3, 1),
        *[(size, 3, 2) for size in ((6, 8), (5, 7), (1, 2))],
        *[(size, 5, 3) for size in ((5, 7), (8, 3))],
        ((1, 2), 7, 2),
    ],
)
def test_equals_the_reference(size, kernel_size, strides):
    def convolution(x, w):
        return np.einsum("bhwcij,ijcf->bhwf", windows_of_bit(x, kernel_size, strides), w["kernel"])

    run_parity_test(PaddedConv2D(4, kernel_size, strides), convolution, random_inputs((*size, 3)))


def test_initial_values():
    layer = PaddedConv2D(64, 3)
    layer.build((None, 5, 8, 32))
    assert canonical_weights(layer)["kernel"].std() == pytest.approx(math.sqrt(2 / (9 * 64)), rel=0.03)


def test_macs():
    assert PaddedConv2D(4, 3, 2).macs((None, 5, 8, 3)) == 3 * 4 * 9 * 3 * 4


def test_refuses_impossible_arguments():
    with pytest.raises(ValueError, match=r"kernel_size must be odd\. Received: 2"):
        PaddedConv2D(4, 2)
    with pytest.raises(ValueError, match=r"Unrecognized keyword arguments passed to PaddedConv2D.*activation"):
        PaddedConv2D(4, 1, activation="relu")


@pytest.mark.skipif(not TENSORFLOW, reason="TensorFlow's convolution crashes the process")
def test_gradient_of_one_pixel_with_strides():
    import tensorflow as tf

    [maps] = random_inputs((8, 12, 4), batch=9)
    layer = PaddedConv2D(8, 1, 2)
    layer.build(maps.shape)

    @tf.function(autograph=False)
    def gradient(maps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(maps) ** 2) / 2
        return tape.gradient(loss, layer.kernel.value)

    seen = maps[:, ::2, ::2].astype("float64").reshape(-1, 4)
    expected = seen.T @ (seen @ to_numpy(layer.kernel)[0, 0])
    for _ in range(5):
        np.testing.assert_allclose(gradient(maps)[0, 0], expected, rtol=1e-4)  # Sums of 216 products in float32.
