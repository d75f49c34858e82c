"""Models that return values or embeddings are exported with these, not with classes."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.export.answers import ANSWERS
from keras_vit.export.parity import Parity, compare
from tests.models.tiny import tiny_model
from tests.test_case import TENSORFLOW, assert_close, randomize, to_numpy

tensorflow_only = pytest.mark.skipif(not TENSORFLOW, reason="elsewhere_test.py tests other backends")
SHAPE, NAMES, UNITS = (8, 12, 3), ["age", "height"], ["years", "cm"]


@pytest.fixture(scope="module")
def model():
    options = {"input_shape": SHAPE, "classes": 2, "classifier_activation": None, "include_preprocessing": True}
    model = randomize(tiny_model(num_layers=1, **options), scale=0.5)
    keras_vit.set_output(model, "values", names=NAMES, units=UNITS)
    return model


def _pixels(count):
    return np.random.default_rng(0).integers(0, 256, (count, *SHAPE)).astype("uint8")


@pytest.mark.slow
@tensorflow_only
def test_a_saved_model_returns_values(model, tmp_path):
    import tensorflow as tf

    folder = keras_vit.export_saved_model(model, tmp_path / "people", signatures=["serving_default", "predict_pixels"])
    loaded = tf.saved_model.load(str(folder))
    pixels = _pixels(3)
    outputs = loaded.signatures["predict_pixels"](images=tf.constant(pixels))
    assert list(outputs) == ["values"]
    assert_close(outputs["values"], to_numpy(model(pixels.astype("float32"))))
    invalid = loaded.signatures["serving_default"](image_bytes=tf.constant([b"no image"]))
    assert (invalid["values"].numpy().tolist(), invalid["valid"].numpy().tolist()) == ([[0, 0]], [False])
    facts = json.loads((folder / "keras_vit.json").read_text())
    assert facts["output"] == {"kind": "values", "activation": None, "units": UNITS}
    assert facts["labels"] == NAMES
    assert (facts["parity"]["has_values"], facts["parity"]["predicted_classes"]) == (True, [])


@pytest.mark.slow
@tensorflow_only
def test_a_runtime_returns_values(model, tmp_path):
    import onnxruntime

    written = keras_vit.export_model(model, tmp_path / "people.onnx", "onnx", images=_pixels(4))
    assert (written.top_1_agreement, written.predicted_classes) == (1, 0)
    [values] = onnxruntime.InferenceSession(written.path).run(["values"], {"images": _pixels(2).astype("float32")})
    assert_close(values, to_numpy(model(_pixels(2).astype("float32"))))


@pytest.fixture(scope="module")
def image_encoder():
    """The image encoder of an image-text model, whose last layer is a projection."""
    options = {"input_shape": SHAPE, "classes": 6, "classifier_activation": None, "include_preprocessing": True}
    model = randomize(tiny_model(num_layers=1, **options), scale=0.5)
    keras_vit.set_output(model, "embedding")
    return model


@pytest.mark.slow
@tensorflow_only
def test_exports_return_embeddings(image_encoder, tmp_path):
    import onnxruntime
    import tensorflow as tf

    folder, pixels = keras_vit.export_saved_model(image_encoder, tmp_path / "search", card=True), _pixels(3)
    signatures = tf.saved_model.load(str(folder)).signatures
    assert "embed" not in signatures
    expected = to_numpy(image_encoder(pixels.astype("float32")))
    assert np.ptp(expected, axis=0).max() > 0.05
    outputs = signatures["predict_pixels"](images=tf.constant(pixels))
    assert_close(outputs.pop("embedding"), expected)
    assert not outputs
    invalid = signatures["serving_default"](image_bytes=tf.constant([b"no image"]))
    assert (invalid["embedding"].numpy().tolist(), invalid["valid"].numpy().tolist()) == ([[0] * 6], [False])
    facts = json.loads((folder / "keras_vit.json").read_text())
    assert facts["output"]["kind"] == "embedding"
    assert "labels" not in facts
    written = keras_vit.export_model(image_encoder, tmp_path / "search.onnx", "onnx", images=_pixels(4))
    session = onnxruntime.InferenceSession(written.path)
    assert_close(session.run(["embedding"], {"images": pixels.astype("float32")})[0], expected)


def test_embeddings_agree_if_their_angle_is_small():
    expected = np.eye(4, 6)
    found = expected.copy()
    found[0, 5], found[1, 5] = 0.1, 0.2  # Cosines 0.995 and 0.98.
    assert ANSWERS["embedding"].agreement([2 * found], [expected], [None]) == 0.75


@pytest.mark.usefixtures("eagerly")
def test_differences_of_values_are_relative(model):
    pixels = _pixels(4)
    known = to_numpy(model(pixels.astype("float32")))
    scale, spread = np.abs(known).max(), np.ptp(known, axis=0).min()
    assert spread > 0.005 * scale
    near, far = known + 0.01 * spread, known.copy()
    far[0] += 2 * np.abs(known).max()
    parity = compare(model, pixels, {"serving_default": near})
    assert parity.max_difference["serving_default"] == pytest.approx(0.01 * spread / scale, rel=0.05)
    assert (parity.top_1_agreement, parity.has_values) == (1, True)
    assert compare(model, pixels, {"serving_default": far}).top_1_agreement == 0.75
    parity = Parity(4, {"serving_default": 5e-5}, 0.75, 1.0, [], has_values=True)
    parity.check(exact=True, tolerance=1e-5, min_agreement=0)
    with pytest.raises(ValueError, match=r"return nearly the same values for 75\.0% of 4 images"):
        parity.check(exact=False, tolerance=1e-5, min_agreement=0.9)
