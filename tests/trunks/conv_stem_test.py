import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.trunks.conv_stem import conv_stem
from tests.models.tiny import tiny_model
from tests.reference.bit_resnet import windows_of_bit
from tests.test_case import random_inputs, run_parity_test

STEM = keras_vit.ConvStemConfig((5, 4, 6), strides=(1, 2, 2))


def reference(x, w):
    """Convolutions with batch norm and ReLU (arXiv 2106.14881, section 4), with the padding and epsilon of PyTorch."""
    for i, stride in enumerate((1, 2, 2)):
        x = np.einsum("bhwcij,ijcf->bhwf", windows_of_bit(x, 3, stride), w[f"stem_conv_{i}/kernel"])
        gamma, beta, mean, variance = (
            w[f"stem_norm_{i}/{part}"] for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        x = np.maximum((x - mean) / np.sqrt(variance + 1e-5) * gamma + beta, 0)
    return x


@pytest.mark.each_backend
def test_equals_numpys():
    images = keras.Input((None, None, 3))
    model = keras.Model(images, conv_stem(images, STEM))
    run_parity_test(model, reference, random_inputs((13, 10, 3)))
    assert model.compute_output_shape((2, 13, 10, 3)) == (2, 4, 3, 6)  # Divided by the stride and rounded up.


def test_of_a_model_each_token_is_a_patch_of_the_stems_map():
    model = tiny_model(input_shape=(16, 24, 3), stem=STEM, patch_size=(1, 2), num_layers=1)
    assert model.get_layer("patch_embedding").output.shape == (None, 4, 3, 12)
    assert keras_vit.describe(model).config.total_stride == (4, 8)
    assert keras_vit.embedding_filters(model, n=2).shape == (2, 3, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widths": ()}, "widths must contain at least one number"),
        ({"widths": (8, 0)}, r"Each number in widths must be a positive integer\. Received: 0"),
        ({"widths": (8,), "strides": 2}, "strides must be a tuple of integers. Received: 2"),
        ({"widths": (8, 8), "strides": (2,)}, "1 or 2 for each of the 2 widths. Received: \\(2,\\)"),
        ({"widths": (8,), "strides": (4,)}, "1 or 2 for each of the 1 widths. Received: \\(4,\\)"),
    ],
)
def test_refuses_impossible_stems(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.ConvStemConfig(**arguments)


def test_error_for_images_that_do_not_fit_names_their_size():
    size, arguments = (32, 40), {"num_layers": 1, "patch_size": (2, 3), "stem": STEM, "classes": 2}
    message = rf"an image of {size[0]} x {size[1]} pixels .* patches of 2 x 3. .* multiples of 8 x 12 pixels"
    with pytest.raises(ValueError, match=message):
        keras_vit.ViT("Ti/16", input_shape=(*size, 3), **arguments)
    cropped = keras_vit.ViT("Ti/16", input_shape=(*size, 3), crop_to_patches=True, **arguments)
    assert cropped.get_layer("patch_tokens").output.shape[1] == (size[0] // 8) * (-(-size[1] // 4) // 3)
