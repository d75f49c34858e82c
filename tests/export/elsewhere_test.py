"""Models of other backends, written by a process with TensorFlow."""

import json
import os

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.decoding import image_decoder
from keras_vit.export import elsewhere
from keras_vit.export.elsewhere import with_tensorflow
from keras_vit.export.parity import read_images
from tests.models.tiny import tiny_model
from tests.test_case import TENSORFLOW, assert_close, randomize

pytest.importorskip("tensorflow")
elsewhere_only = pytest.mark.skipif(TENSORFLOW, reason="Keras runs on TensorFlow here")


@pytest.fixture(scope="module")
def model():
    return randomize(tiny_model(classifier_activation="softmax"), scale=0.5)


@elsewhere_only
def test_without_tensorflow_nothing_is_written(model, tmp_path, monkeypatch):
    monkeypatch.setattr(elsewhere.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"TensorFlow writes SavedModels .* is not installed. Install it with: pip"):
        keras_vit.export_saved_model(model, tmp_path / "pets", labels=list("abcde"))
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.skipif(not TENSORFLOW, reason="Keras runs on another backend here")
def test_with_tensorflow_it_is_a_call(model):
    seen = []
    with_tensorflow(lambda *arguments, **options: seen.append((arguments, options)), model, folder="x")
    assert seen == [((model,), {"folder": "x"})]


@elsewhere_only
def test_a_saved_model_answers_as_the_model_predicts(model, tmp_path):
    import tensorflow as tf

    labels = [f"class {index} " + "x" * 40_000 for index in range(5)]  # More than a command line holds.
    folder = keras_vit.export_saved_model(model, tmp_path, labels=labels)
    files = read_images(None)
    decode = image_decoder(model)
    pixels = np.stack([decode(file) for file in files])
    expected = model.predict(keras_vit.preprocess_input(pixels, model), verbose=0)
    assert np.ptp(expected, axis=0).max() > 0.001
    signatures = tf.saved_model.load(str(folder)).signatures
    outputs = signatures["serving_default"](image_bytes=tf.constant(files))
    assert_close(outputs["probabilities"], expected)
    assert outputs["labels"][0, 0].numpy().decode() == labels[expected[0].argmax()]
    assert_close(signatures["predict_pixels"](images=tf.constant(pixels))["probabilities"], expected)
    facts = json.loads((folder / "keras_vit.json").read_text())
    assert facts["versions"]["keras_backend"] == keras.backend.backend()
    assert max(facts["parity"]["max_difference"].values()) <= 1e-5


@elsewhere_only
def test_what_fails_there_is_told_here(model, tmp_path):
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    path = tmp_path / "exported"
    with pytest.raises(
        RuntimeError, match=r"KERAS_BACKEND=tensorflow.*: images must be JPEG.*text\.jpg cannot be read"
    ):
        keras_vit.export_saved_model(model, path, images=[text])
    assert os.listdir(path) == []
