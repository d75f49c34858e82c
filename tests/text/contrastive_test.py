"""The losses of image-text models equal a NumPy transcription of their equations."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_vit.text.contrastive import contrastive_loss
from tests.differentiation import value_and_gradients
from tests.test_case import TENSORFLOW, assert_close, randomize
from tests.text.models import CONTEXT, SHAPE, random_model

ACTIVATIONS = ("softmax", "sigmoid")
IMAGE, TEXT = np.random.default_rng(0).normal(size=(2, 7, 3))


def _reference(image, text, activation):
    logits = image @ text.T
    if activation == "sigmoid":  # SigLIP, equation 1.
        z = 2 * np.eye(len(logits)) - 1
        return -np.log(1 / (1 + np.exp(-z * logits))).sum() / len(logits)
    # CLIP, figure 3.
    of_images = -np.log(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
    of_texts = -np.log(np.exp(logits) / np.exp(logits).sum(axis=0, keepdims=True))
    return (np.diag(of_images).mean() + np.diag(of_texts).mean()) / 2


def _slopes(function, array, step=1e-5):
    found = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        change = np.zeros_like(array)
        change[index] = step
        found[index] = (function(array + change) - function(array - change)) / (2 * step)
    return found


@pytest.mark.parametrize("chunk_size", [3, 1024])  # Chunks of 3, 3 and 1 images, or one of 7.
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_loss_and_gradients(activation, chunk_size):
    if keras.backend.backend() == "torch":
        pytest.skip("value_and_gradients compiles functions")
    loss, gradients = value_and_gradients(
        lambda image, text: contrastive_loss(image, text, activation, chunk_size),
        IMAGE.astype("float32"),
        TEXT.astype("float32"),
    )
    assert_close(loss, _reference(IMAGE, TEXT, activation))
    assert_close(gradients[0], _slopes(lambda image: _reference(image, TEXT, activation), IMAGE))
    assert_close(gradients[1], _slopes(lambda text: _reference(IMAGE, text, activation), TEXT))


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX measures memory before it runs")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_eight_chunks_need_a_quarter_of_the_memory(activation):
    import jax

    def num_bytes(chunk_size):
        function = jax.grad(lambda image, text: contrastive_loss(image, text, activation, chunk_size), (0, 1))
        rows = jax.ShapeDtypeStruct((2048, 129), "float32")
        return jax.jit(function).lower(rows, rows).compile().memory_analysis().temp_size_in_bytes

    assert num_bytes(2048) / num_bytes(256) > 4


def _pairs():
    random = np.random.default_rng(0)
    images = random.normal(size=(4, *SHAPE)).astype("float32")
    return {"images": images, "token_ids": random.integers(1, 500, (4, CONTEXT)).astype("int32")}


@pytest.mark.on_torch
def test_fit_with_a_frozen_image_encoder():
    """The text encoder learns to name the images (LiT, arXiv 2111.07991)."""
    model = randomize(random_model(), scale=1.0)
    model.similarity_layer.log_scale.assign(np.log(1 / 0.07))
    model.image_encoder.trainable = False
    model.compile(keras.optimizers.Adam(0.01), run_eagerly=keras.backend.backend() != "jax")  # JAX is slow eagerly.
    frozen = model.image_encoder.get_weights()
    history = model.fit(_pairs(), epochs=4, batch_size=4, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    for weight, before in zip(model.image_encoder.get_weights(), frozen, strict=True):
        np.testing.assert_array_equal(weight, before)
    with pytest.raises(ValueError, match="neither targets nor sample weights"):
        model.evaluate(_pairs(), np.zeros(4), verbose=0)
    with pytest.raises(ValueError, match="Received: 4 images, 3 texts"):
        model.compute_loss(y_pred={"image": np.ones((4, 3)), "text": np.ones((3, 3))})


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="JAX's arrays contain the pairs of all devices")
def test_two_replicas_have_the_gradients_of_one_device():
    command = [sys.executable, "-m", "tests.text.two_replicas"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    root = pathlib.Path(__file__).parents[2]
    process = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-4000:]
    for found in json.loads(process.stdout.splitlines()[-1]).values():
        assert found["change"] > 1
        assert max(found["loss"], found["gradients"]) < 1e-6
