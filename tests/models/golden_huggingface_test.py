"""Folders that transformers wrote give models with transformers' outputs. See tests/golden/README.md."""

import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from tests.test_case import TENSORFLOW, assert_close, compute

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "modern"
TOKENS = {"include_top": False, "pooling": None}


def outputs(name, images, family, **arguments):
    model = keras_vit.from_pretrained(GOLDEN / name, family=family, input_shape=images.shape[1:], **arguments)
    return compute(model, [images])


@pytest.mark.parametrize("name", [pytest.param("dinov3_hf", marks=pytest.mark.each_backend), "dinov3_hf_gated"])
def test_dinov3(name):
    """Images have the file's size, or a size that is not square. An epsilon of 1e-6 would change the tokens by 9e-5."""
    arrays = np.load(GOLDEN / name / "io.npz")
    assert_close(outputs(name, arrays["images"], "dinov3", **TOKENS), arrays["tokens"])
    if TENSORFLOW:  # JAX would compile each model.
        assert_close(outputs(name, arrays["images_other"], "dinov3", **TOKENS), arrays["tokens_other"])
        assert_close(outputs(name, arrays["images_other"], "dinov3"), arrays["pooled_other"])


def test_dinov3_needs_a_family_without_image_preparation():
    """The models for satellite images have other means and standard deviations."""
    with pytest.raises(ValueError, match="does not define how pixels are normalised"):
        keras_vit.from_pretrained(GOLDEN / "dinov3_hf")
    model = keras_vit.from_pretrained(GOLDEN / "dinov3_hf", family="dinov3_sat")
    assert keras_vit.describe(model).pixels["mean"] == [0.43, 0.411, 0.296]


@pytest.mark.parametrize("name", ["clip_hf", "siglip_hf"])
def test_image_tower(name):
    """The text tower is left out. transformers divides the vector of an image by its length."""
    arrays = np.load(GOLDEN / name / "io.npz")
    image = outputs(name, arrays["images"], None)
    assert_close(image / np.linalg.norm(image, axis=-1, keepdims=True), arrays["image"])


def test_clip_tokens_of_another_size():
    """transformers' CLIP returns the tokens before the last LayerNorm. Their values reach 12."""
    arrays = np.load(GOLDEN / "clip_hf" / "io.npz")
    images = arrays["images_other"]
    model = keras_vit.from_pretrained(GOLDEN / "clip_hf", input_shape=images.shape[1:], **TOKENS)
    last_block = keras.Model(model.inputs[0], model.get_layer("encoder_norm").input)
    assert_close(compute(last_block, [images]) / 12, arrays["image_tokens_other"] / 12)
