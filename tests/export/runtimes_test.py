import dataclasses
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import runtimes
from keras_vit.export.runtimes import export_model
from tests.models.tiny import tiny_model
from tests.test_case import TENSORFLOW, assert_close, randomize, rest_slow

tensorflow_only = pytest.mark.skipif(not TENSORFLOW, reason="another process writes the file: one test does that")
SUFFIXES = {"onnx": ".onnx", "litert": ".tflite", "openvino": ".xml"}
ANY_SIZE = (None, None, 3)


def _tiny(**changes):
    return tiny_model(**{"num_layers": 1, **changes})


def _nested():
    changes = {"num_register_tokens": 2, "position_embedding": "sincos_2d", "layer_scale": 0.1, "qk_norm": True}
    backbone = _tiny(include_top=False, pooling="avg", mlp="swiglu", **changes)
    return keras.Sequential([keras.Input(backbone.input_shape[1:]), backbone, keras.layers.Dense(4)])


# {name: (function that makes a model, sizes of images)}
MODELS = {
    "attention pooling, exact GELU, multi-label": (
        lambda: _tiny(pooling="map", mlp="gelu_exact", norm_placement="after_pooling", classifier_activation="sigmoid"),
        [(8, 9)],
    ),
    "nested, average, SwiGLU, registers, sines, layer scale, qk-norm": (_nested, [(8, 9)]),
    "distilled, quick GELU, normalises": (
        lambda: _tiny(
            distillation_token=True, mlp="quick_gelu", include_preprocessing=True, classifier_activation="softmax"
        ),
        [(8, 9)],
    ),
    "any size": (
        lambda: _tiny(input_shape=ANY_SIZE, position_interpolation="bicubic_antialias", representation_dim=7),
        [(8, 9), (12, 6)],
    ),
    "any size, registers without class token": (
        lambda: _tiny(input_shape=ANY_SIZE, pooling="avg", num_register_tokens=2),
        [(8, 9), (12, 6)],
    ),
    "any size, hybrid, gray, sines, cropped": (
        lambda: _tiny(
            input_shape=(None, None, 1),
            stem=keras_vit.StemConfig(stage_depths=(1,), width=32),
            patch_size=(2, 1),
            position_embedding="sincos_2d",
            crop_to_patches=True,
        ),
        [(19, 22), (16, 9)],
    ),
}


@pytest.fixture(scope="module", params=rest_slow(MODELS))
def case(request):
    """(model, [(images, the probabilities that it predicts)])"""
    build, sizes = MODELS[request.param]
    keras.utils.set_random_seed(0)
    model = randomize(build())
    rng = np.random.default_rng(7)
    shapes = [(batch_size, *size, model.input_shape[-1]) for batch_size, size in zip((2, 5), sizes, strict=False)]
    batches = [rng.uniform(0, 255, shape).astype("float32") for shape in shapes]
    return model, [(images, _probabilities(model, images)) for images in batches]


def _probabilities(model, images):
    outputs = model.predict(keras_vit.preprocess_input(images, model), verbose=0)
    if model.layers[-1].activation is not keras.activations.linear:
        return outputs
    exponentials = np.exp(outputs)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _run(path, images):
    """What the runtime of a file answers."""
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


@tensorflow_only
@pytest.mark.parametrize("format", SUFFIXES)
def test_answers_as_the_model(case, format, tmp_path):
    model, batches = case
    path = tmp_path / f"tiny{SUFFIXES[format]}"
    written = export_model(model, path, format)
    assert written.path == path
    assert written.max_difference < 1e-5
    for images, expected in batches:
        assert np.ptp(expected, axis=1).max() > 0.05  # Not the same probability for every class.
        assert_close(_run(path, images), expected)


@pytest.mark.parametrize("format", SUFFIXES if TENSORFLOW else ["onnx"])
def test_what_is_reported(format, tmp_path):
    """Of a model whose images are no photographs; from another backend through a process that has TensorFlow."""
    model = randomize(_tiny(input_shape=(8, 9, 4)))
    images = np.random.default_rng(3).integers(0, 256, (5, 8, 9, 4)).astype("uint8")
    path = tmp_path / "new" / f"tiny.v2{SUFFIXES[format]}"
    written = export_model(model, str(path), format, images=images)
    names = {"tiny.v2.bin", "tiny.v2.xml"} if format == "openvino" else {path.name}
    files = list(path.parent.iterdir())
    assert {file.name for file in files} == names
    assert written.num_bytes == sum(file.stat().st_size for file in files)
    assert (written.path, written.images, written.batch_sizes) == (path, 5, (1, 3))
    expected = _probabilities(model, images.astype("float32"))
    difference = np.abs(_run(path, images.astype("float32")) - expected).max()
    assert abs(difference - written.max_difference) < 1e-6
    assert written.top_1_agreement == 1
    with pytest.raises(FileExistsError, match=r"tiny\.v2\.\w+ exists.*overwrite=True"):
        export_model(model, path, format, images=images)


@tensorflow_only
@pytest.mark.parametrize(
    ("format", "precision", "size"), [("litert", "float16", 0.6), ("litert", "int8", 0.4), ("openvino", "float16", 0.6)]
)
def test_smaller_weights(format, precision, size, tmp_path):
    model = randomize(_tiny(hidden_dim=192, mlp_dim=768, classes=3), scale=0.1)
    images = np.random.default_rng(4).integers(0, 256, (12, 8, 9, 3))
    path = tmp_path / f"tiny{SUFFIXES[format]}"
    written = export_model(model, path, format, images=images, precision=precision, min_agreement=0.5)
    assert written.num_bytes < size * 4 * model.count_params()
    expected = _probabilities(model, images.astype("float32"))
    answers = _run(path, images.astype("float32"))
    assert 0 < np.abs(answers - expected).max() < 0.1
    agreement = (answers.argmax(axis=1) == expected.argmax(axis=1)).mean()
    assert abs(written.top_1_agreement - agreement) < 1e-6
    assert agreement > 0.5


@tensorflow_only
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        # There is no operator for the erfc of Keras's exact GELU, which Keras's exporter does not notice.
        (lambda model: keras.Sequential([model, keras.layers.Dense(7, "gelu"), keras.layers.Dense(4)]), "Erfc"),
        (lambda model: model.weights[-1].assign([1.0, 2.0, np.nan, 3.0, 4.0]), "answers otherwise.* by nan"),
    ],
)
def test_nothing_is_left_of_a_file_that_is_not_right(spoil, message, tmp_path):
    model = randomize(_tiny())
    spoilt = spoil(model)
    model = spoilt if isinstance(spoilt, keras.Model) else model
    (tmp_path / "tiny.onnx").write_text("the last one")
    with pytest.raises(ValueError, match=rf"(?s){message}.*Nothing was exported"):
        export_model(model, tmp_path / "tiny.onnx", "onnx", overwrite=True)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("tiny.onnx", "the last one")]


@tensorflow_only
def test_too_few_of_the_same_classes(tmp_path, monkeypatch):
    model = randomize(_tiny(classes=3))
    model.weights[-1].assign([0.0, 99.0, 0.0])

    def names_the_last_class(path):
        return lambda images: np.tile(np.float32([[0.1, 0.2, 0.7]]), (len(images), 1))

    wrong = dataclasses.replace(runtimes._FORMATS["litert"], open=names_the_last_class)
    monkeypatch.setitem(runtimes._FORMATS, "litert", wrong)
    with pytest.raises(ValueError, match=r"0\.0%.*min_agreement=0\.25.*Nothing was"):
        export_model(model, tmp_path / "tiny.tflite", "litert", precision="int8", min_agreement=0.25)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "tflite"}, r"one of 'onnx', 'litert', 'openvino'. Received: 'tflite'.*export_saved_model"),
        ({"format": "litert"}, r"'litert' is a file that ends in \.tflite. Received: '.*tiny\.onnx'"),
        ({"precision": "int8"}, r"precision of the format 'onnx' must be one of 'float32'. Received: 'int8'"),
        ({"min_agreement": 95}, r"min_agreement must be in \[0, 1\]. Received: 95"),
        ({"images": np.zeros((2, 9, 8, 3))}, r"shape \(None, 8, 9, 3\).*Received: float64 \(2, 9, 8, 3\)"),
        ({"images": [np.zeros((2, 8, 9, 3)), np.zeros((8, 9, 3))]}, r"Received: .*, float64 \(8, 9, 3\)"),
        ({"images": np.zeros((0, 8, 9, 3))}, r"Received: float64 \(0, 8, 9, 3\)"),
        ({"images": np.full((2, 8, 9, 3), "a")}, r"Received: <U1 \(2, 8, 9, 3\)"),
        ({"images": []}, r"Received: an empty list"),
    ],
)
def test_refused_arguments(changes, message, tmp_path):
    arguments = {"path": tmp_path / "new" / "tiny.onnx", "format": "onnx"} | changes
    with pytest.raises(ValueError, match=message):
        export_model(_tiny(), **arguments)
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: _tiny(include_top=False), r"Only classifiers.*\(None, 12\)"),
        (_in_bfloat16, r"compute in float32.*set_weights\(model\.get_weights\(\)\)"),
        (lambda: _tiny(input_shape=(8, 9, 4)), r"no photographs.*\(8, 9, 4\).*images=\.\.\."),
        (_of_unknown_architecture, r"no photographs.*\(None, None, 3\)"),
    ],
)
def test_refused_models(build, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_model(build(), tmp_path / "tiny.onnx", "onnx")
    assert not list(tmp_path.iterdir())


def test_too_large_a_model(tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "_MESSAGE_BYTES", 1000)
    for format in ("onnx", "litert"):
        with pytest.raises(ValueError, match=r"2 GiB.*openvino.*export_saved_model"):
            export_model(_tiny(), tmp_path / f"tiny{SUFFIXES[format]}", format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("format", "package"),
    [("onnx", "tf2onnx"), ("onnx", "onnxruntime"), ("litert", "ai_edge_litert"), ("openvino", "openvino")],
)
def test_missing_packages(format, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{format}' needs {package}\..*keras-vit-applications\[runtimes\]"):
        export_model(_tiny(), tmp_path / f"tiny{SUFFIXES[format]}", format)
    assert not list(tmp_path.iterdir())
