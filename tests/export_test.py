import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import keras
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

import keras_vit
from keras_vit.export import image_decoder
from keras_vit.preprocessing import imagenet1k_classes
from tests.test_case import TENSORFLOW, assert_close, randomize, to_numpy

tensorflow_only = pytest.mark.skipif(not TENSORFLOW, reason="a SavedModel is written by TensorFlow")
CONFIG = keras_vit.ViTConfig(patch_size=(4, 3), hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
LABELS = ["ant", "bee", "cat", "dog"]


def _model(**changes):
    arguments = {"input_shape": (8, 12, 3), "classes": 4} | changes
    return randomize(keras_vit.ViT(CONFIG, **arguments), scale=0.5)


def _picture(height, width, mode="RGB"):
    """A smooth picture without symmetry, so that JPEG hardly changes it and no flip or turn goes unseen."""
    rows, columns = np.mgrid[:height, :width] / [[[height]], [[width]]]
    channels = [255 * rows, 255 * columns, 120 + 100 * np.sin(3 * rows + 2 * columns), 90 + 60 * rows]
    array = np.stack(channels[: len(mode)], axis=-1).round().astype("uint8")
    return PIL.Image.fromarray(array[..., 0] if mode == "L" else array)


def _noise(height, width):
    """Every pixel its own: it shows whether a smaller picture takes all of them into account.

    Not down to 0 nor up to 255, where Pillow clips between its two passes.
    """
    return PIL.Image.fromarray(np.random.default_rng(0).integers(64, 192, (height, width, 3)).astype("uint8"))


def _encoded(image, file_format, **options):
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def _decoder(size, channels=3, **protocol):
    """The decoder of a model that is nothing but its protocol."""
    layer = keras_vit.Preprocessing(**({"resize": size} | protocol))
    return image_decoder(keras.Sequential([keras.Input((*size, channels)), layer]))


def _decode(image_bytes, size, **protocol):
    return _decoder(size, **protocol)(image_bytes).numpy()


@pytest.mark.skipif(TENSORFLOW, reason="only where Keras runs on another backend")
def test_refused_without_tensorflow(tmp_path):
    with pytest.raises(RuntimeError, match=r"Keras runs on '(jax|torch)'.*KERAS_BACKEND=tensorflow"):
        keras_vit.export_saved_model(_model(), tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


# Decoding.


@tensorflow_only
@pytest.mark.parametrize(
    ("file_format", "mode"),
    [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "L"), ("BMP", "RGB"), ("WEBP", "RGB"), ("JPEG", "RGB"), ("JPEG", "L")],
)
def test_decodes_as_pillow_does(file_format, mode):
    image = _picture(24, 33, mode)
    file = _encoded(image, file_format)
    expected = np.atleast_3d(np.asarray(PIL.Image.open(io.BytesIO(file))))[..., :3]
    decoded = _decode(file, (24, 33))
    assert decoded.dtype == "uint8"
    np.testing.assert_array_equal(decoded, np.broadcast_to(expected, (24, 33, 3)))


@tensorflow_only
def test_decodes_the_first_frame_of_an_animation():
    frames = [_picture(24, 33).quantize(64), PIL.Image.new("P", (33, 24))]
    gif = _encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(_decode(gif, (24, 33)), np.asarray(frames[0].convert("RGB")))


@tensorflow_only
def test_decodes_to_gray():
    for mode in ("RGB", "L"):
        image = _picture(24, 33, mode)
        decoded = _decode(_encoded(image, "PNG"), (24, 33), channels=1)
        assert decoded.shape == (24, 33, 1)
        assert np.abs(decoded[..., 0].astype(int) - np.asarray(image.convert("L"))).max() <= (mode == "RGB")


@tensorflow_only
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(61, 97), (97, 61), (20, 31)])
def test_resizes_like_pillow(size, interpolation):
    image = _noise(*size)
    filters = {"bilinear": PIL.Image.Resampling.BILINEAR, "bicubic": PIL.Image.Resampling.BICUBIC}
    expected = np.asarray(image.resize((30, 22), filters[interpolation])).astype(int)
    decoded = _decode(_encoded(image, "PNG"), (22, 30), interpolation=interpolation)
    assert np.abs(decoded - expected).max() <= 2


@tensorflow_only
@pytest.mark.parametrize("size", [(61, 97), (97, 61), (32, 32), (29, 40)])
def test_resizes_the_short_side_and_crops_the_centre(size):
    image = _noise(*size)
    short = min(size)
    height, width = (round(side * 32 / short) for side in size)
    top, left = (height - 24) // 2, (width - 30) // 2
    resized = image.resize((width, height), PIL.Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((left, top, left + 30, top + 24))).astype(int)
    decoded = _decode(_encoded(image, "PNG"), (24, 30), resize=32, crop=(24, 30))
    assert np.abs(decoded - expected).max() <= 2


def _exif(orientation, order, before=()):
    """An EXIF block of one directory: the tags of `before`, then the orientation (0x0112, one SHORT)."""
    tags = [*before, (0x0112, orientation)]
    entries = b"".join(struct.pack(order + "HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    mark = b"II" if order == "<" else b"MM"
    header = mark + struct.pack(order + "HI", 42, 8)
    return b"Exif\0\0" + header + struct.pack(order + "H", len(tags)) + entries + struct.pack(order + "I", 0)


@tensorflow_only
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_applies_the_exif_orientation(orientation, order):
    before = [(0x0100, 33), (0x0101, 24)] if orientation % 2 else []
    jpeg = _encoded(_picture(24, 33), "JPEG", exif=_exif(orientation, order, before))
    expected = np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(jpeg)))).astype(int)
    assert expected.shape[:2] == ((24, 33) if orientation < 5 else (33, 24))
    np.testing.assert_array_equal(_decode(jpeg, expected.shape[:2]), expected)


@tensorflow_only
def test_exif_behind_another_segment():
    jpeg = _encoded(_picture(24, 33), "JPEG", exif=_exif(6, ">"))
    comment = b"\xff\xfe" + struct.pack(">H", 300) + bytes(298)
    expected = _decode(jpeg, (33, 24))
    np.testing.assert_array_equal(_decode(jpeg[:2] + comment + jpeg[2:], (33, 24)), expected)


@tensorflow_only
@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0",
        b"Exif\0\0II",
        b"Exif\0\0XX" + bytes(40),
        b"Exif\0\0MM\0*" + b"\xff" * 8,
        b"Exif\0\0II*\0" + b"\xff\xff\xff\x7f" + b"\xff" * 30,
        b"Exif\0\0II*\0\x08\0\0\0" + b"\xff\xff" + b"\xff" * 12,
        _exif(0, "<"),
        _exif(9, ">"),
        _exif(65535, "<"),
        _exif(6, "<")[:20],
    ],
)
def test_damaged_exif_is_ignored(exif):
    plain = _encoded(_picture(24, 33), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    np.testing.assert_array_equal(_decode(plain[:2] + segment + plain[2:], (24, 33)), _decode(plain, (24, 33)))


@tensorflow_only
def test_decoder_needs_a_fixed_size_and_one_or_three_channels():
    for shape, protocol, message in (
        ((None, None, 3), {}, "needs a model of fixed size"),
        ((8, 12, 4), {}, "have 1 or 3 channels here. Received: a model for 4"),
        ((8, 12, 3), {"resize": None}, "does not lead to that size: resize=None, crop=None"),
        ((8, 12, 3), {"resize": 8}, "does not lead to that size: resize=8, crop=None"),
        ((8, 12, 3), {"resize": 8, "crop": (8, 12)}, r"does not lead to that size: resize=8, crop=\[8, 12\]"),
        ((8, 12, 3), {"resize": (12, 8)}, r"8 x 12 pixels.*resize=\[12, 8\]"),
        ((8, 12, 3), {"resize": (8, 12), "crop": (4, 4)}, r"crop=\[4, 4\]"),
    ):
        layer = keras_vit.Preprocessing(**({"resize": (8, 12)} | protocol))
        with pytest.raises(ValueError, match=message):
            image_decoder(keras.Sequential([keras.Input(shape), layer]))


# SavedModels.


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
        _encoded(_picture(8, 12), "PNG"),
        _encoded(_picture(61, 97), "JPEG", exif=_exif(6, "<")),
        _encoded(_picture(20, 50), "GIF"),
        _encoded(_picture(30, 20), "BMP"),
        _encoded(_picture(24, 33, "L"), "PNG"),
        _encoded(_picture(24, 33, "RGBA"), "PNG"),
        _encoded(_picture(40, 20, "L"), "JPEG"),
    ]
    outputs = loaded.signatures["serving_default"](image_bytes=tf.constant(files))
    pixels = np.stack([_decode(file, (8, 12)) for file in files])
    expected = model.predict(pixels, verbose=0)
    assert np.ptp(expected, axis=0).max() > 0.01  # The pictures differ.
    _assert_outputs(outputs, expected, LABELS, top_k=2)


@tensorflow_only
def test_loads_where_there_is_only_tensorflow(exported, tmp_path):
    model, _, path = exported
    picture = tmp_path / "picture.png"
    picture.write_bytes(_encoded(_picture(8, 12), "PNG"))
    program = """
import json, sys, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
outputs = loaded.signatures["serving_default"](image_bytes=tf.constant([open(sys.argv[2], "rb").read()]))
assert "keras_vit" not in sys.modules
print(json.dumps([outputs["probabilities"].numpy().tolist(), outputs["labels"].numpy()[0, 0].decode()]))
"""
    command = [sys.executable, "-c", program, str(path), str(picture)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    probabilities, label = json.loads(result.stdout)
    expected = to_numpy(model(np.asarray(_picture(8, 12))[None].astype("float32")))
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
    pixels = np.asarray(_picture(8, 12, "L"))[None, ..., None]
    logits = to_numpy(model(keras_vit.preprocess_input(pixels, model)))
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    # No label space and no labels: the indices; all three of them, since five are more than there are.
    _assert_outputs(loaded.signatures["predict_pixels"](images=tf.constant(pixels)), expected, ["0", "1", "2"], 3)
    files = tf.constant([_encoded(_picture(8, 12, "L"), "PNG")])
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
