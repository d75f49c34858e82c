"""Exports of a classifier whose classes are words equal the image-text model."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from tests.test_case import TENSORFLOW, assert_close, randomize
from tests.text.models import SHAPE, random_model

NAMES = ["cat", "toy dog", "train"]


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="exports run on TensorFlow")
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_exports_of_a_classifier(activation, tmp_path, monkeypatch):
    import onnxruntime
    import openvino
    import tensorflow as tf

    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    model = randomize(random_model(activation, include_preprocessing=True), scale=1.0)
    model.similarity_layer.log_scale.assign(3.0)
    classifier = model.classifier(NAMES, "photo", activation)
    pixels = np.random.default_rng(0).integers(0, 256, (2, *SHAPE)).astype("float32")
    expected = model.similarity(pixels, [f"a photo of a {name}." for name in NAMES])
    assert np.ptp(expected, axis=0).max() > 0.01

    folder = keras_vit.export_saved_model(
        classifier, tmp_path / "saved", signatures=["serving_default", "predict_pixels"]
    )
    predict = tf.saved_model.load(str(folder)).signatures["predict_pixels"]
    outputs = predict(images=tf.constant(pixels.astype("uint8")))
    assert_close(outputs["probabilities"], expected)
    assert outputs["labels"][0, 0].numpy().decode() == NAMES[expected[0].argmax()]
    assert json.loads((folder / "keras_vit.json").read_text())["classes"] == len(NAMES)

    files = {format: tmp_path / f"words.{suffix}" for format, suffix in (("onnx", "onnx"), ("openvino", "xml"))}
    for format, file in files.items():
        keras_vit.export_model(classifier, file, format)
    session = onnxruntime.InferenceSession(files["onnx"])
    assert_close(session.run(["probabilities"], {"images": pixels})[0], expected)
    compiled = openvino.compile_model(files["openvino"], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert_close(compiled(pixels)["probabilities"], expected)

    classifier.save(tmp_path / "words.keras")
    assert_close(keras.saving.load_model(tmp_path / "words.keras").predict(pixels, verbose=0), expected)
