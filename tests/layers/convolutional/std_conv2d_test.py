import functools

import keras
import numpy as np
import pytest

from keras_vit.layers.convolutional.std_conv2d import StdConv2D
from tests.reference import bit_resnet as reference
from tests.test_case import MIXED_POLICIES, canonical_weights, random_inputs, run_layer_test, run_parity_test, to_numpy

# (kernel size, strides, size)
CASES = [(3, 1, (8, 10)), (7, 2, (7, 9)), (3, 2, (9, 6)), (1, 3, (9, 7)), (7, 3, (2, 1))]


@pytest.mark.on_torch
def test_layer(tmp_path):
    arguments = {"filters": 10, "kernel_size": 3, "strides": 2, "epsilon": 1e-3}
    arguments |= {"epsilon_placement": "variance", "padding": "symmetric"}
    run_layer_test(StdConv2D, arguments, [(9, 6, 5)], (5, 3, 10), {"kernel": (3, 3, 5, 10)}, tmp_path)


def _std_conv(x, weights, **arguments):
    return reference.std_conv(x, weights["kernel"], **arguments)


@pytest.mark.parametrize(("kernel_size", "strides", "size"), CASES)
def test_equals_the_equation(kernel_size, strides, size):
    layer = StdConv2D(6, kernel_size, strides)
    run_parity_test(layer, functools.partial(_std_conv, s=strides), random_inputs((*size, 3)))


@pytest.mark.parametrize(("kernel_size", "strides", "size"), CASES[:2])
def test_equals_jax(kernel_size, strides, size):
    # The function that Flax's convolution calls. The authors' code uses Flax.
    jax = pytest.importorskip("jax")

    def convolve(images, weights):
        kernel = weights["kernel"] - weights["kernel"].mean((0, 1, 2))
        kernel = kernel / (jax.numpy.std(kernel, axis=(0, 1, 2)) + 1e-5)
        dimensions = ("NHWC", "HWIO", "NHWC")
        strided = (strides, strides)
        return np.asarray(
            jax.lax.conv_general_dilated(
                images.astype("float32"), kernel, strided, "SAME", dimension_numbers=dimensions, precision="highest"
            )
        )

    run_parity_test(StdConv2D(6, kernel_size, strides), convolve, random_inputs((*size, 3)))


def test_epsilon_is_added_to_the_deviation():
    layer = StdConv2D(6, 3)
    [maps] = random_inputs((8, 10, 3))
    layer.build(maps.shape)
    # The kernel is so small that an epsilon in the variance, or no epsilon, would give quite different results.
    weights = 1e-5 * np.random.default_rng(1).normal(size=(3, 3, 3, 6))
    layer.set_weights([weights])
    np.testing.assert_allclose(to_numpy(layer(maps)), reference.std_conv(maps, weights), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kernel_size", "strides", "size"), CASES)
def test_as_bit_has_it(kernel_size, strides, size):
    layer = StdConv2D(6, kernel_size, strides, 0.25, epsilon_placement="variance", padding="symmetric")

    def equation(x, weights):
        return reference.std_conv_of_bit(x, weights["kernel"], strides, 0.25)

    [maps] = random_inputs((*size, 3))
    run_parity_test(layer, equation, [maps])
    assert layer.compute_output_shape(maps.shape) == tuple(layer(maps).shape)


@pytest.mark.parametrize("placement", ["std", "variance"])
def test_standardized_kernel_has_mean_zero_and_variance_one(placement):
    layer = StdConv2D(6, 5, epsilon=1e-10, epsilon_placement=placement)
    layer.build((None, 8, 10, 3))
    layer.set_weights([3 + 0.1 * np.random.default_rng(1).normal(size=(5, 5, 3, 6))])
    kernel = to_numpy(layer.standardized_kernel()).astype("float64")
    np.testing.assert_allclose(kernel.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(kernel.var((0, 1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_kernel_is_standardised_in_float32(policy):
    # Rounding to 16 bits would lose the deviation of the kernel.
    layer = StdConv2D(2, 1, dtype=policy)
    layer.build((None, 1, 1, 4))
    kernel = 1 + np.array([[-3.0, -1.0, 1.0, 3.0], [1.0, -1.0, 1.0, -1.0]]).T * 2.0**-13
    layer.set_weights([kernel.reshape(1, 1, 4, 2)])
    actual = to_numpy(layer(np.eye(4).reshape(4, 1, 1, 4)))[:, 0, 0]
    expected = (kernel - 1) / (kernel.std(axis=0) + 1e-5)
    np.testing.assert_allclose(actual, expected, rtol=2.0**-8)


def test_kernel_starts_lecun_normal():
    layer = StdConv2D(256, 3)
    layer.build((None, 5, 6, 32))
    kernel = canonical_weights(layer)["kernel"]
    # The normal distribution is truncated at two of its standard deviations, so that the variance is 1 / fan-in.
    deviation = np.sqrt(1 / (3 * 3 * 32))
    assert kernel.std() == pytest.approx(deviation, rel=0.02)
    assert np.abs(kernel).max() <= 2 * deviation / 0.87962566


def test_macs():
    # 4 x 5 positions, 3 x 3 x 6 products for each of 10 filters.
    assert StdConv2D(10, 3, strides=2).macs((None, 7, 10, 6)) == 20 * 54 * 10


def test_shape_may_be_unknown():
    assert StdConv2D(10, 3, strides=2).compute_output_shape((None, None, 7, 3)) == (None, None, 4, 10)


def test_refuses_what_is_not_available():
    for arguments, message in (
        ({"epsilon_placement": "var"}, "epsilon_placement must be one of 'std', 'variance'. Received: 'var'"),
        ({"padding": "valid"}, "padding must be one of 'same', 'symmetric'. Received: 'valid'"),
        ({"kernel_size": 2, "padding": "symmetric"}, "needs an odd kernel_size. Received: kernel_size=2"),
    ):
        with pytest.raises(ValueError, match=message):
            StdConv2D(**{"filters": 10, "kernel_size": 3, **arguments})


def test_channels_are_last_whatever_the_global_setting():
    keras.config.set_image_data_format("channels_first")
    try:
        run_parity_test(StdConv2D(6, 3, 2), functools.partial(_std_conv, s=2), random_inputs((7, 10, 3)))
    finally:
        keras.config.set_image_data_format("channels_last")
