import keras
import numpy as np
import pytest

from keras_vit.layers import PatchEmbedding
from tests.reference import vit as reference
from tests.test_case import assert_close, canonical_weights, random_inputs, run_layer_test, run_parity_test, to_numpy


@pytest.mark.each_backend
def test_layer(tmp_path):
    arguments = {"hidden_dim": 10, "patch_size": (4, 3), "crop_to_patches": True, "use_bias": False}
    run_layer_test(PatchEmbedding, arguments, [(9, 11, 2)], (2, 3, 10), {"kernel": (4, 3, 2, 10)}, tmp_path)


def _project_patches(images, weights):
    kernel = weights["kernel"]
    height, width = images.shape[1] // kernel.shape[0], images.shape[2] // kernel.shape[1]
    patches = reference.patchify(images, *kernel.shape[:2])
    tokens = patches @ kernel.reshape(-1, kernel.shape[-1]) + weights.get("bias", 0)
    return tokens.reshape(len(images), height, width, -1)


@pytest.mark.parametrize(("patch_size", "shape"), [(4, (8, 12, 3)), ((4, 3), (8, 15, 1)), ((2, 5), (6, 5, 4))])
def test_equals_patches_times_a_matrix(patch_size, shape):
    for use_bias in (True, False):
        layer = PatchEmbedding(10, patch_size, use_bias=use_bias)
        run_parity_test(layer, _project_patches, random_inputs(shape))


def test_pixels_are_taken_row_by_row():
    # Each pixel holds its own index. The kernel selects one pixel of each patch, so the output is its index.
    images = np.arange(2 * 6 * 12 * 3, dtype="float32").reshape(2, 6, 12, 3)
    layer = PatchEmbedding(2 * 4 * 3, (2, 4))
    layer.build(images.shape)
    layer.set_weights([np.eye(24).reshape(2, 4, 3, 24), np.zeros(24)])
    tokens = to_numpy(layer(images)).reshape(2, 9, 24)
    for n in range(9):
        row, column = 2 * (n // 3), 4 * (n % 3)
        np.testing.assert_array_equal(tokens[:, n], images[:, row : row + 2, column : column + 4].reshape(2, 24))


def test_kernel_starts_lecun_normal():
    layer = PatchEmbedding(256, 8)
    layer.build((None, 16, 24, 3))
    weights = canonical_weights(layer)
    # The normal distribution is truncated at two of its standard deviations, so that the variance is 1 / fan-in.
    deviation = np.sqrt(1 / (8 * 8 * 3))
    assert weights["kernel"].std() == pytest.approx(deviation, rel=0.02)
    assert np.abs(weights["kernel"]).max() <= 2 * deviation / 0.87962566
    assert not weights["bias"].any()


def test_crop_cuts_at_the_bottom_and_the_right():
    [images] = random_inputs((11, 15, 3))
    layer = PatchEmbedding(10, 4, crop_to_patches=True)
    output = to_numpy(layer(images))
    assert output.shape == (2, 2, 3, 10)
    assert_close(layer(images[:, :8, :12]), output)


def test_size_may_be_unknown():
    layer = PatchEmbedding(10, 4)
    assert layer.compute_output_shape((None, None, 12, 3)) == (None, None, 3, 10)
    assert layer(keras.Input((None, None, 3))).shape == (None, None, None, 10)


@pytest.mark.parametrize("size", [(9, 12), (8, 13)])
def test_refuses_a_size_that_does_not_divide(size):
    message = rf"{size[0]} x {size[1]} pixels does not divide into patches of 4 x 4.*crop_to_patches=True"
    with pytest.raises(ValueError, match=message):
        PatchEmbedding(10, 4)(np.zeros((1, *size, 3), "float32"))
    with pytest.raises(ValueError, match=message):
        PatchEmbedding(10, 4).compute_output_shape((None, *size, 3))


def test_refuses_less_than_a_patch_even_when_cropping():
    with pytest.raises(ValueError, match="at least one patch must remain"):
        PatchEmbedding(10, 4, crop_to_patches=True)(np.zeros((1, 3, 12, 3), "float32"))


def test_channels_are_last_whatever_the_global_setting():
    keras.config.set_image_data_format("channels_first")
    try:
        run_parity_test(PatchEmbedding(10, 4), _project_patches, random_inputs((8, 12, 3)))
    finally:
        keras.config.set_image_data_format("channels_last")


def test_macs():
    # 2 x 3 whole patches of 4 x 3 pixels in 2 channels, for each of 10 output channels.
    assert PatchEmbedding(10, (4, 3), crop_to_patches=True).macs((None, 9, 11, 2)) == 2 * 3 * 4 * 3 * 2 * 10
