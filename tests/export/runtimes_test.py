import json
import pathlib
import sys
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import calibration, runtimes
from keras_vit.export.runtimes import export_model
from tests.export.exports import FILES, rotary
from tests.models.tiny import tiny_model
from tests.test_case import TENSORFLOW, assert_close, quantize, randomize, to_numpy

tensorflow_only = pytest.mark.skipif(not TENSORFLOW, reason="another process writes the file: elsewhere_test.py")
SUFFIXES = {"onnx": ".onnx", "litert": ".tflite", "openvino": ".xml"}
ANY_SIZE = (None, None, 3)


def _tiny(**changes):
    return tiny_model(**{"num_layers": 1, **changes})


def _probabilities(model, images):
    outputs = to_numpy(model(keras_vit.preprocess_input(images, model)))
    if model.layers[-1].activation is not keras.activations.linear:
        return outputs
    exponentials = np.exp(outputs)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _run(path, images):
    """The outputs of a file in its runtime."""
    if path.suffix == ".onnx":
        import onnxruntime

        return onnxruntime.InferenceSession(path).run(["probabilities"], {"images": images})[0]
    if path.suffix == ".tflite":
        from ai_edge_litert.interpreter import Interpreter

        return Interpreter(str(path)).get_signature_runner("serving_default")(images=images)["probabilities"]
    import openvino

    compiled = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert len(compiled.inputs) == len(compiled.outputs) == 1
    return compiled({"images": images})["probabilities"]


def _batches(model, sizes):
    rng = np.random.default_rng(7)
    shapes = [(batch_size, *size, model.input_shape[-1]) for batch_size, size in zip((2, 5), sizes, strict=False)]
    return [rng.uniform(0, 255, shape).astype("float32") for shape in shapes]


def _assert_answers(path, model, sizes):
    for images in _batches(model, sizes):
        expected = _probabilities(model, images)
        assert np.ptp(expected, axis=1).max() > 0.05  # Not the same probability for every class.
        assert_close(_run(path, images), expected)


@tensorflow_only
@pytest.mark.parametrize(("format", "num_images"), [("onnx", 5), ("litert", 4), ("openvino", 3)])
def test_answers_as_the_model_and_what_is_reported(format, num_images, request):
    model, written = request.getfixturevalue(f"{format}_file")
    _, name, sizes = FILES[format]
    files = [file for file in written.path.parent.iterdir() if file.name != "README.md"]  # The model card.
    assert {file.name for file in files} == {name} | ({"tiny.v2.bin"} if format == "openvino" else set())
    assert written.num_bytes == sum(file.stat().st_size for file in files)
    assert (written.images, written.batch_sizes) == (num_images, [1, 3])
    assert 0 < written.max_difference < 1e-5
    assert written.top_1_agreement == 1
    _assert_answers(written.path, model, sizes)
    with pytest.raises(FileExistsError, match=r"tiny\.v2\.\w+ exists.*overwrite=True"):
        export_model(model, written.path, format)


@tensorflow_only
def test_the_reported_difference(onnx_file):
    model, written = onnx_file
    images = np.random.default_rng(3).integers(0, 256, (5, 12, 8, 3)).astype("float32")  # The images of the fixture.
    difference = np.abs(_run(written.path, images) - _probabilities(model, images)).max()
    assert abs(difference - written.max_difference) < 1e-6


def _nested():
    changes = {"num_register_tokens": 2, "position_embedding": "sincos_2d", "layer_scale": 0.1, "qk_norm": True}
    backbone = _tiny(include_top=False, pooling="avg", mlp="swiglu", **changes)
    return keras.Sequential([keras.Input(backbone.input_shape[1:]), backbone, keras.layers.Dense(4)])


# {name: (function that makes a model, image sizes, format)}
MODELS = {
    "nested, average, SwiGLU, registers, sines, layer scale, qk-norm": (_nested, [(8, 9)], "litert"),
    "distilled, quick GELU, normalises": (
        lambda: _tiny(
            distillation_token=True, mlp="quick_gelu", include_preprocessing=True, classifier_activation="softmax"
        ),
        [(8, 9)],
        "openvino",
    ),
    "any size": (
        lambda: _tiny(input_shape=ANY_SIZE, position_interpolation="bicubic_antialias", representation_dim=7),
        [(8, 9), (12, 6)],
        "litert",
    ),
    "any size, axial rotary positions": (lambda: rotary(ANY_SIZE), [(12, 15), (20, 9)], "openvino"),
    "any size, mixed rotary positions": (
        lambda: _tiny(input_shape=ANY_SIZE, rotary=keras_vit.RotaryConfig("mixed", layout="interleaved")),
        [(8, 9), (12, 6)],
        "onnx",
    ),
}


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize("name", MODELS)
def test_other_models(name, tmp_path):
    build, sizes, format = MODELS[name]
    model = randomize(build())
    path = tmp_path / f"tiny{SUFFIXES[format]}"
    assert export_model(model, path, format).max_difference < 1e-5
    _assert_answers(path, model, sizes)


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize(
    ("format", "precision", "size"),
    [("onnx", "int8", 0.4), ("litert", "float16", 0.6), ("litert", "int8", 0.4), ("openvino", "int8", 0.7)],
)
def test_smaller_weights(format, precision, size, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(calibration, "_FEW_CLASSES", 1.0)  # As many classes as the model has are few.
    model = randomize(_tiny(num_layers=3, hidden_dim=96, mlp_dim=384, classes=3), scale=0.1)
    images = np.random.default_rng(4).integers(0, 256, (12, 8, 9, 3))
    path = tmp_path / f"tiny{SUFFIXES[format]}"
    written = export_model(model, path, format, images=images, precision=precision, min_agreement=0.5)
    assert written.num_bytes < size * 4 * model.count_params()
    expected = _probabilities(model, images.astype("float32"))
    answers = _run(path, images.astype("float32"))
    assert 0 < np.abs(answers - expected).max() < 0.1
    agreement = (answers.argmax(axis=1) == expected.argmax(axis=1)).mean()
    compared = slice(3, None, 4) if precision == "int8" else slice(None)
    classes = [array[compared].argmax(axis=1) for array in (answers, expected)]
    assert (written.images, written.top_1_agreement) == (len(answers[compared]), np.equal(*classes).mean())
    assert written.predicted_classes == len(set(classes[1]))
    assert (f"predicts only {written.predicted_classes} of its 3 classes" in caplog.text) == (precision == "int8")
    assert (written.relative_speed is not None) == (precision == "int8")
    assert agreement > 0.5


@tensorflow_only
def test_precisions_that_exporters_are_asked_for(tmp_path, monkeypatch):
    import openvino
    import tensorflow as tf

    asked, saved = [], []
    monkeypatch.setattr(keras.Model, "export", lambda *_, verbose, input_signature, **options: asked.append(options))
    monkeypatch.setattr(openvino, "Core", lambda: types.SimpleNamespace(read_model=str))
    monkeypatch.setattr(openvino, "save_model", lambda model, file, compress_to_fp16: saved.append(compress_to_fp16))
    model, photographs = _tiny(), str(tmp_path / "photographs.npz")
    for precision in ("float32", "float16"):
        runtimes.write_file(model, str(tmp_path / "tiny.tflite"), "litert", precision, photographs, sizes=[])
    in_float16 = {"optimizations": [tf.lite.Optimize.DEFAULT], "target_spec": {"supported_types": [tf.float16]}}
    assert asked == [{"format": "litert"}, {"format": "litert"} | in_float16]
    for precision in ("float32", "float16"):
        runtimes.write_file(model, str(tmp_path / "tiny.xml"), "openvino", precision, photographs, sizes=[])
    assert saved == [False, True]


@pytest.fixture
def unwritten(monkeypatch, eagerly):
    """Function (answer) that makes `export_model` use `answer(images)` instead of LiteRT, and write an empty model;
    it returns the arguments of the process that would write the file."""
    asked = []

    def write(function, model, file, photographs, **arguments):
        asked.append(json.loads(json.dumps(arguments)))  # Arguments are passed to the process as JSON.
        pathlib.Path(file).write_text("nothing")
        arrays = [np.full((4, *size, model.input_shape[-1]), 100, "uint8") for size in arguments["sizes"]]
        np.savez(photographs, *arrays)

    def stand_in(answer):
        runner = types.SimpleNamespace(get_signature_runner=lambda: lambda images: {"probabilities": answer(images)})
        monkeypatch.setattr("ai_edge_litert.interpreter.Interpreter", lambda file: runner)
        return asked

    monkeypatch.setattr(runtimes, "with_tensorflow", write)
    return stand_in


def _raise(images):
    raise RuntimeError("no operator")


def test_nothing_is_left_of_a_file_that_is_not_right(unwritten, tmp_path):
    model = randomize(_tiny(classes=3))
    model.weights[-1].assign([0.0, 99.0, 0.0])  # It is sure of the second class.
    path = tmp_path / "tiny.tflite"
    path.write_text("the last one")
    for answer, changes, message in (
        (_raise, {}, "The runtime of the format 'litert' cannot run the file of this model: no operator"),
        (lambda images: [[0, 0.9999, 1e-4]] * len(images), {}, "differ from the model's.* by 1.0e-04"),
        (
            lambda images: [[0.1, 0.2, 0.7]] * len(images),
            {"precision": "float16", "min_agreement": 0.25},
            r"0\.0%.*min_agreement=0\.25",
        ),
    ):
        unwritten(answer)
        with pytest.raises(ValueError, match=rf"(?s){message}.*Nothing was\s+exported"):
            export_model(model, path, "litert", overwrite=True, **changes)
        assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(path.name, "the last one")]
    unwritten(_raise)
    with pytest.raises(ValueError, match=r"Nothing was\s+exported"):
        export_model(model, tmp_path / "new" / "1" / "tiny.tflite", "litert")
    assert list(tmp_path.iterdir()) == [path]


def test_sizes_of_the_photographs(unwritten, tmp_path):
    """A model of any size is tested with two sizes, one of them not square."""
    asked = unwritten(_raise)
    for shape, images in ((ANY_SIZE, None), ((8, 9, 3), None), ((8, 9, 3), np.zeros((2, 8, 9, 3)))):
        with pytest.raises(ValueError, match="no operator"):
            export_model(_tiny(input_shape=shape), tmp_path / "tiny.tflite", "litert", images=images)
    assert [arguments["sizes"] for arguments in asked] == [[[14 * 4, 14 * 3], [10 * 4, 13 * 3]], [[8, 9]], []]


@pytest.mark.slow
def test_a_new_folder_appears_with_its_files(unwritten, tmp_path):
    """A server that watches `models` never sees a folder `1` without its file. Two images are tested one by one, and as
    a batch of three, in which one is repeated."""
    model, seen, counts = randomize(_tiny()), [], []

    def answer(images):
        seen.extend((tmp_path / "models").glob("[0-9]*"))
        counts.append(len(images))
        return _probabilities(model, images)

    unwritten(answer)
    path = tmp_path / "models" / "1" / "tiny.tflite"
    written = export_model(model, path, "litert", card=True, images=np.zeros((2, 8, 9, 3)))
    assert not seen
    assert (written.images, counts) == (2, [1, 1, 1, 3])
    assert {file.name for file in written.path.parent.iterdir()} == {"tiny.tflite", "README.md"}
    assert [folder.name for folder in (tmp_path / "models").iterdir()] == ["1"]


@pytest.mark.slow
@tensorflow_only
def test_an_operator_that_a_runtime_has_not(tmp_path):
    """ONNX has no operator for the erfc of Keras's exact GELU, and Keras's exporter does not report that."""
    model = keras.Sequential([randomize(_tiny()), keras.layers.Dense(7, "gelu"), keras.layers.Dense(4)])
    with pytest.raises(ValueError, match=r"(?s)Erfc.*Nothing was exported"):
        export_model(model, tmp_path / "tiny.onnx", "onnx")
    assert not list(tmp_path.iterdir())


def test_refused_arguments(tmp_path):
    model, images = _tiny(), np.zeros((2, 8, 9, 3))
    for changes, message in (
        ({"format": "tflite"}, r"one of 'onnx', 'litert', 'openvino'.*'tflite'. Did you mean 'litert'\?.*export_saved"),
        ({"format": "litert"}, r"A file of the format 'litert' must end in \.tflite. Received: '.*tiny\.onnx'"),
        ({"precision": "float16"}, r"precision of the format 'onnx' must be one of 'float32', 'int8'. Received: 'fl"),
        ({"precision": "int8"}, r"a few hundred images .* shape \(None, 8, 9, 3\).*Received: images=None"),
        ({"precision": "int8", "images": np.zeros((3, 8, 9, 3))}, r"at least 4 images.*Received: 3 images"),
        ({"min_agreement": 95}, r"min_agreement must be in \[0, 1\]. Received: 95"),
        ({"images": np.ones((9, 8, 9, 3))}, r"\[0, 255\], before.*Received: pixels in \[1, 1\]"),
        ({"images": [images, np.full((1, 8, 9, 3), np.nan)]}, r"Received: pixels in \[nan, nan\]"),
        ({"images": np.zeros((2, 9, 8, 3))}, r"shape \(None, 8, 9, 3\).*Received: float64 \(2, 9, 8, 3\)"),
        ({"images": [images, images[0]]}, r"np.stack.*Received: float64 \(8, 9, 3\)"),
        ({"images": images[:0]}, r"Received: float64 \(0, 8, 9, 3\)"),
        ({"images": np.full((2, 8, 9, 3), "a")}, r"Received: <U1 \(2, 8, 9, 3\)"),
        ({"images": []}, r"Received: an empty list"),
    ):
        with pytest.raises(ValueError, match=message):
            export_model(model, **{"path": tmp_path / "new" / "1" / "tiny.onnx", "format": "onnx", **changes})
    assert not list(tmp_path.iterdir())


_IMAGES = np.random.default_rng(0).integers(0, 256, (8, 8, 9, 3)).astype("float32")


def _with_one(value):
    images = _IMAGES.copy()
    images[3, 2, 1, 0] = value
    return images


@pytest.mark.combination(
    "int8: images= with black, equal, normalised or too few images, NaN, another size or another type", "refused"
)
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (0 * _IMAGES, "All images are equal"),
        (np.repeat(_IMAGES[:1], 8, axis=0), "All images are equal"),
        (_IMAGES * np.nan, r"pixels in \[nan, nan\]"),
        (_with_one(np.nan), r"pixels in \[nan, nan\]"),
        (_with_one(np.inf), r"pixels in \[0, inf\]"),
        (_IMAGES / 255, r"pixels in \[0, 1\]"),
        (_IMAGES / 127.5 - 1, r"pixels in \[-1, 1\]"),
        (_IMAGES[:1], "at least 4 images.*Received: 1 image$"),
        (_IMAGES[:, :7], r"Received: float32 \(8, 7, 9, 3\)"),
        (_IMAGES[:0], r"Received: float32 \(0, 8, 9, 3\)"),
        (None, "Received: images=None"),
        ("photographs", r"Paths and data sets are not accepted. Received: <U11 \(\)"),
        *((_IMAGES.astype(dtype), f"Received: {dtype} ") for dtype in ("bool", "object", "complex64")),
    ],
)
def test_images_that_cannot_calibrate_are_refused(images, message):
    model = types.SimpleNamespace(input_shape=(None, 8, 9, 3))
    with pytest.raises(ValueError, match=message):
        runtimes._images_for(model, images, "int8")


def _of_unknown_architecture():
    layers = [keras_vit.Preprocessing(), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input(ANY_SIZE), *layers])


def _in_bfloat16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return _tiny()
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.combination(
    "export_model of a model under mixed_bfloat16, to ONNX", "refused; the message says how to make a float32 model"
)
def test_refused_models(tmp_path):
    quantized = _tiny()
    quantize(quantized, "int8", filters="hidden")
    for model, message in (
        (_tiny(include_top=False, pooling=None), r"Only models that return classes.*\(None, 7, 12\)"),
        (_in_bfloat16(), r"compute in float32.*set_weights\(model\.get_weights\(\)\)"),
        (quantized, r"was quantized by Keras, which the format 'onnx' cannot express.*before model\.quantize"),
        (_tiny(input_shape=(8, 9, 4)), r"no photographs.*\(8, 9, 4\).*images=\.\.\."),
        (_of_unknown_architecture(), r"no photographs.*\(None, None, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            export_model(model, tmp_path / "tiny.onnx", "onnx")
    assert not list(tmp_path.iterdir())


def test_too_large_a_model(unwritten, tmp_path, monkeypatch):
    """The files' serialisers support less than 2 GiB."""
    model = _tiny()
    unwritten(_raise)
    monkeypatch.setattr(keras.Model, "count_params", lambda model: 2**29)
    for format in ("onnx", "litert"):
        with pytest.raises(ValueError, match=r"2 GiB, and .* are 2\.0 GiB\. Use format='openvino'.*export_saved"):
            export_model(model, tmp_path / f"tiny{SUFFIXES[format]}", format)
    monkeypatch.setattr(keras.Model, "count_params", lambda model: 2**29 - 1)
    with pytest.raises(ValueError, match="no operator"):  # The file is written, and the stand-in cannot run it.
        export_model(model, tmp_path / "tiny.tflite", "litert")
    assert not list(tmp_path.iterdir())


def test_missing_packages(tmp_path, monkeypatch):
    model = _tiny()
    packages = [("onnx", "tf2onnx"), ("onnx", "onnxruntime"), ("litert", "ai_edge_litert"), ("openvino", "openvino")]
    for format, package in packages:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ImportError, match=rf"{format}' needs {package}\..*with its extra 'runtimes'"):
                export_model(model, tmp_path / f"tiny{SUFFIXES[format]}", format)
    assert not list(tmp_path.iterdir())
