import json
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.decoding import image_decoder
from keras_vit.label_spaces import imagenet1k_classes
from tests.pictures import encoded, exif_segment, picture
from tests.test_case import TENSORFLOW, assert_close, randomize, to_numpy

tensorflow_only = pytest.mark.skipif(not TENSORFLOW, reason="a SavedModel is written by TensorFlow")
CONFIG = keras_vit.ViTConfig(patch_size=(4, 3), hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
LABELS = ["ant", "bee", "cat", "dog"]


def _model(**changes):
    arguments = {"input_shape": (8, 12, 3), "classes": 4} | changes
    return randomize(keras_vit.ViT(CONFIG, **arguments), scale=0.5)


@pytest.mark.skipif(TENSORFLOW, reason="only where Keras runs on another backend")
def test_refused_without_tensorflow(tmp_path):
    with pytest.raises(RuntimeError, match=r"Keras runs on '(jax|torch)'.*KERAS_BACKEND=tensorflow"):
        keras_vit.export_saved_model(_model(), tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


@pytest.fixture(scope="module")
def exported():
    """(model, its export loaded again, folder)"""
    import tensorflow as tf

    model = _model(include_preprocessing=True)
    with tempfile.TemporaryDirectory() as folder:
        path = keras_vit.export_saved_model(model, pathlib.Path(folder) / "pets", labels=LABELS, version=3, top_k=2)
        yield model, tf.saved_model.load(str(path)), path


@tensorflow_only
def test_folder(exported):
    _, _, path = exported
    assert (path.parent.name, path.name) == ("pets", "3")
    assert [child.name for child in path.parent.iterdir()] == ["3"]
    assert (path / "saved_model.pb").is_file()
    assert path.stat().st_mode & 0o777 == path.parent.stat().st_mode & 0o777  # The server may be another user.


@tensorflow_only
def test_signatures(exported):
    _, loaded, _ = exported
    assert set(loaded.signatures) >= {"serving_default", "predict_pixels"}
    for name, argument, dtype, shape in (
        ("serving_default", "image_bytes", "string", [None]),
        ("predict_pixels", "images", "uint8", [None, 8, 12, 3]),
    ):
        [(found, specification)] = loaded.signatures[name].structured_input_signature[1].items()
        assert (found, specification.dtype.name, specification.shape.as_list()) == (argument, dtype, shape)
        outputs = loaded.signatures[name].structured_outputs
        assert set(outputs) == {"probabilities", "classes", "labels", "scores"}


@tensorflow_only
@pytest.mark.parametrize("batch", [1, 3])
def test_predict_pixels(exported, batch):
    import tensorflow as tf

    model, loaded, _ = exported
    pixels = np.random.default_rng(0).integers(0, 256, (batch, 8, 12, 3)).astype("uint8")
    outputs = loaded.signatures["predict_pixels"](images=tf.constant(pixels))
    expected = model.predict(pixels, verbose=0)
    assert np.ptp(expected) > 0.1  # Not the uniform probabilities of a zero head.
    _assert_outputs(outputs, expected, LABELS, top_k=2)


def _assert_outputs(outputs, probabilities, labels, top_k):
    assert_close(outputs["probabilities"], probabilities)
    best = np.argsort(-probabilities, axis=1)[:, :top_k]
    np.testing.assert_array_equal(outputs["classes"], best)
    assert_close(outputs["scores"], np.take_along_axis(probabilities, best, axis=1))
    assert [[label.decode() for label in row] for row in outputs["labels"].numpy()] == [
        [labels[index] for index in row] for row in best
    ]


@tensorflow_only
def test_serving_default_reads_a_batch_of_different_files(exported):
    import tensorflow as tf

    model, loaded, _ = exported
    files = [
        encoded(picture(8, 12), "PNG"),
        encoded(picture(61, 97), "JPEG", exif=exif_segment(6, "<")),
        encoded(picture(20, 50), "GIF"),
        encoded(picture(30, 20), "BMP"),
        encoded(picture(24, 33, "L"), "PNG"),
        encoded(picture(24, 33, "RGBA"), "PNG"),
        encoded(picture(40, 20, "L"), "JPEG"),
    ]
    outputs = loaded.signatures["serving_default"](image_bytes=tf.constant(files))
    decode = image_decoder(model)
    pixels = np.stack([decode(file).numpy() for file in files])
    expected = model.predict(pixels, verbose=0)
    assert np.ptp(expected, axis=0).max() > 0.01  # The pictures differ.
    _assert_outputs(outputs, expected, LABELS, top_k=2)


@tensorflow_only
def test_loads_where_there_is_only_tensorflow(exported, tmp_path):
    model, _, path = exported
    file = tmp_path / "picture.png"
    file.write_bytes(encoded(picture(8, 12), "PNG"))
    program = """
import json, sys, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
outputs = loaded.signatures["serving_default"](image_bytes=tf.constant([open(sys.argv[2], "rb").read()]))
assert "keras_vit" not in sys.modules
print(json.dumps([outputs["probabilities"].numpy().tolist(), outputs["labels"].numpy()[0, 0].decode()]))
"""
    command = [sys.executable, "-c", program, str(path), str(file)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    probabilities, label = json.loads(result.stdout)
    expected = to_numpy(model(np.asarray(picture(8, 12))[None].astype("float32")))
    assert_close(np.array(probabilities), expected)
    assert label == LABELS[expected.argmax()]


@tensorflow_only
def test_nested_model_with_logits_of_gray_images(tmp_path):
    import tensorflow as tf

    # Normalising happens outside of this model, and its head returns logits.
    backbone = _model(include_top=False, pooling="avg", input_shape=(8, 12, 1))
    model = keras.Sequential([keras.Input((8, 12, 1)), backbone, keras.layers.Dense(3)])
    path = keras_vit.export_saved_model(model, str(tmp_path))
    assert path == tmp_path / "1"
    loaded = tf.saved_model.load(str(path))
    pixels = np.asarray(picture(8, 12, "L"))[None, ..., None]
    logits = to_numpy(model(keras_vit.preprocess_input(pixels, model)))
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    # No label space and no labels: the indices; all three of them, since five are more than there are.
    _assert_outputs(loaded.signatures["predict_pixels"](images=tf.constant(pixels)), expected, ["0", "1", "2"], 3)
    files = tf.constant([encoded(picture(8, 12, "L"), "PNG")])
    _assert_outputs(loaded.signatures["serving_default"](image_bytes=files), expected, ["0", "1", "2"], 3)


class _NothingWritten:
    """Stands for Keras's archive, for the tests of what is done around it."""

    labels = None

    def track(self, model):
        pass

    def add_endpoint(self, name, function, input_signature):
        import tensorflow as tf

        if name == "predict_pixels":
            pixels = tf.zeros([1, *input_signature[0].shape[1:]], tf.uint8)
            type(self).labels = [label.decode() for label in function(pixels)["labels"].numpy()[0]]

    def write_out(self, path, verbose=True):
        (pathlib.Path(path) / "saved_model.pb").write_text("model")


@pytest.fixture
def nothing_written(monkeypatch):
    monkeypatch.setattr(keras.export, "ExportArchive", _NothingWritten)
    return _NothingWritten


@tensorflow_only
def test_default_labels(tmp_path, nothing_written):
    layer = keras_vit.Preprocessing(resize=(8, 12), label_space="imagenet1k")
    layers = [layer, keras.layers.Flatten(), keras.layers.Dense(1000, activation="softmax", kernel_initializer="zeros")]
    keras_vit.export_saved_model(keras.Sequential([keras.Input((8, 12, 3)), *layers]), tmp_path)
    assert nothing_written.labels == [name for _, name in imagenet1k_classes()[:5]]


@tensorflow_only
def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch, nothing_written):
    def fail(self, path, verbose=True):
        (pathlib.Path(path) / "half").write_text("half a model")
        raise OSError("disk full")

    model = _model()
    keras_vit.export_saved_model(model, tmp_path, version=1)
    monkeypatch.setattr(_NothingWritten, "write_out", fail)
    for version, overwrite in ((2, False), (1, True)):
        with pytest.raises(OSError, match="disk full"):
            keras_vit.export_saved_model(model, tmp_path, version=version, overwrite=overwrite)
        assert [child.name for child in tmp_path.iterdir()] == ["1"]
        assert [child.name for child in (tmp_path / "1").iterdir()] == ["saved_model.pb"]


@tensorflow_only
def test_an_existing_version_is_refused_unless_it_may_be_replaced(tmp_path, nothing_written):
    model = _model()
    folder = keras_vit.export_saved_model(model, tmp_path, version=2)
    (folder / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match=r"2 exists. Give another version, or overwrite=True"):
        keras_vit.export_saved_model(model, tmp_path, version=2)
    assert (folder / "mine").exists()
    assert keras_vit.export_saved_model(model, tmp_path, version=2, overwrite=True) == folder
    assert [child.name for child in folder.iterdir()] == ["saved_model.pb"]
    keras_vit.export_saved_model(model, tmp_path, version=10)
    assert {child.name for child in tmp_path.iterdir()} == {"2", "10"}


@tensorflow_only
def test_refused_arguments(tmp_path):
    model = _model()
    for arguments, message in (
        ({"version": "1"}, "version must be a positive integer.*Received: '1'"),
        ({"version": -1}, "version must be a positive integer.*Received: -1"),
        ({"version": True}, "version must be a positive integer.*Received: True"),
        ({"labels": ["a", "b"]}, r"labels must be a list of names for the model's 4 classes. Received: \['a', 'b'\]"),
        ({"labels": "abcd"}, "labels must be a list of names"),
        ({"top_k": 0}, "top_k must be a positive integer. Received: 0"),
        ({"precision": "int8"}, "precision='int8' is not available. Available: 'float32'"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.export_saved_model(model, tmp_path, **arguments)
    for other, message in (
        (_model(include_top=False), "Only classifiers are exported.*layer 'pooling'"),
        (_model(include_top=False, pooling=None), "Only classifiers are exported.*layer 'encoder_norm'"),
        (_model(input_shape=(None, None, 3)), "needs a model of fixed size"),
        (keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), "has one Preprocessing layer"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.export_saved_model(other, tmp_path)
    with pytest.raises(ValueError, match="must return probabilities, or logits"):
        keras_vit.export_saved_model(_model(classifier_activation="relu"), tmp_path)
    assert not list(tmp_path.iterdir())


def _served(model, path, pixels, **arguments):
    import tensorflow as tf

    folder = keras_vit.export_saved_model(model, path, **arguments)
    return tf.saved_model.load(str(folder)).signatures["predict_pixels"](images=tf.constant(pixels))["probabilities"]


@tensorflow_only
@pytest.mark.parametrize("ending", ["cast", "softmax_layer", "nested_whole", "jit_compile"])
def test_probabilities_are_the_models_however_it_ends(ending, tmp_path):
    softmax = None if ending == "softmax_layer" else "softmax"
    inner = _model(include_preprocessing=True, classifier_activation=softmax)
    last = {"cast": keras.layers.Activation("linear", dtype="float32"), "softmax_layer": keras.layers.Softmax()}
    model = keras.Sequential([keras.Input((8, 12, 3)), inner, *([last[ending]] if ending in last else [])])
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3)).astype("uint8")
    expected = model.predict(pixels, verbose=0)
    assert np.ptp(expected) > 0.1
    assert_close(_served(model, tmp_path, pixels, jit_compile=ending == "jit_compile"), expected)


@tensorflow_only
def test_what_would_be_guessed_is_refused(tmp_path):
    inner = _model(include_top=False)
    rescaled = keras.Sequential(
        [keras.Input((8, 12, 3)), keras.layers.Rescaling(1 / 127.5, -1), inner, keras.layers.Dense(4)]
    )
    with pytest.raises(ValueError, match="changes pixels before its preprocessing layer"):
        keras_vit.export_saved_model(rescaled, tmp_path)
    with pytest.raises(ValueError, match="logits of at least two classes"):
        keras_vit.export_saved_model(_model(classes=1, classifier_activation=None), tmp_path)
    assert not list(tmp_path.iterdir())
