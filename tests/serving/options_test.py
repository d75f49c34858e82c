"""The options of an export work in C++."""

import functools
import itertools
import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data.decoding import image_decoder
from keras_vit.export.precision import round_to_int8
from keras_vit.export.signatures import ORIGINAL
from tests.export import dense_test as dense
from tests.export.exports import OPTIONS, export_option, meta_graph
from tests.pictures import encoded, noise, picture
from tests.serving.expected import assert_outputs, named
from tests.serving.program import prediction_log, read_answers, serve
from tests.test_case import randomize, to_numpy

CONFIG = keras_vit.ViTConfig(patch_size=8, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
FILES = [encoded(picture(40 + 7 * index, 50), "JPEG") for index in range(3)]


def _answering(model, folder, precision):
    """The function from pixels to probabilities that an export must equal."""
    import tensorflow as tf

    if precision == "bfloat16":  # Keras rounds in other places, so the export itself runs in Python.
        signature = tf.saved_model.load(str(folder)).signatures["predict_pixels"]
        return lambda pixels: signature(images=tf.constant(pixels))["probabilities"].numpy()
    for kernel, values, scale in round_to_int8(model):
        kernel.assign(values * scale)
    return functools.partial(_probabilities, model)


def _probabilities(model, pixels):
    outputs = model(keras_vit.preprocess_input(pixels, model))
    is_logits = model.layers[-1].activation is keras.activations.linear
    return to_numpy(keras.ops.softmax(outputs) if is_logits else outputs)


def _requests(model, image_size):
    """[(signature, its inputs, the model's pixels)]. With `image_size`, one request contains files."""
    size, channels = image_size or model.input_shape[1:3], model.input_shape[-1]
    pixels = np.random.default_rng(0).integers(0, 256, (7, *size, channels)).astype("uint8")
    requests = [("predict_pixels", {"images": pixels}, pixels), ("predict_pixels", {"images": pixels[4:]}, pixels[4:])]
    if image_size:
        decode = image_decoder(model, image_size)
        requests[1] = ("serving_default", {"image_bytes": FILES}, np.stack([decode(file) for file in FILES]))
    return requests


@pytest.mark.slow  # signatures_test.py runs an export in C++ in the default tier.
@pytest.mark.parametrize("names", [["compiled in int8"], ["int8 of any size", "hybrid in bfloat16"]], ids=", ".join)
def test_in_c_as_in_python(names, tmp_path, tmp_path_factory):
    """All models run in one process, like versions in a server, and get requests in turn."""
    exports = [export_option(tmp_path_factory, name) for name in names]
    requests, expected = [], []
    for place, (name, (model, folder)) in enumerate(zip(names, exports, strict=True)):
        _, options = OPTIONS[name]
        image_size = options.get("image_size")
        facts = json.loads((folder / "keras_vit.json").read_text())
        # Smaller weights are also compared on crops of the photographs.
        assert facts["parity"]["images"] == 32
        assert facts["parity"]["top_1_agreement"] >= 0.95
        functions = meta_graph(folder).graph_def.library.function
        is_for_xla = any(function.attr["_XlaMustCompile"].b for function in functions)
        assert is_for_xla == options.get("jit_compile", False)
        asked = _requests(model, image_size)
        labels = [str(index) for index in range(model.output_shape[-1])]
        exact = [_probabilities(model, pixels) for *_, pixels in asked]
        answer = _answering(model, folder, options["precision"])
        known = [answer(pixels) for *_, pixels in asked]
        for close, array in zip(exact, known, strict=True):
            assert np.ptp(array) > 0.1
            assert 0 < np.abs(array - close).max() < 0.02
        valid = {"predict_pixels": {}, "serving_default": {"valid": np.ones(len(FILES), bool)}}
        requests.append([prediction_log(signature, place, **inputs) for signature, inputs, _ in asked])
        answered = zip(known, asked, strict=True)
        expected.append([named(array, labels, top_k=5) | valid[signature] for array, (signature, *_) in answered])
    in_turn = list(itertools.chain(*zip(*requests, strict=True)))
    serve([folder for _, folder in exports], in_turn, tmp_path)
    answers = read_answers(tmp_path)
    assert not answers.errors
    for outputs, known in zip(answers.outputs, itertools.chain(*zip(*expected, strict=True)), strict=True):
        assert_outputs(outputs, known)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_values_and_labels(precision, tmp_path):
    """Numbers, and labels of which an image can have several, are answered under their names."""
    exports = {}
    for kind, names in (("values", ["age", "height"]), ("labels", ["cat", "dog", "tree"])):
        activation = "sigmoid" if kind == "labels" else None
        options = {"input_shape": (32, 48, 3), "classes": len(names), "classifier_activation": activation}
        model = randomize(keras_vit.ViT(CONFIG, include_preprocessing=True, **options))
        keras_vit.set_output(model, kind, names=names)
        folder = keras_vit.export_saved_model(model, tmp_path / kind, precision=precision)
        exports[kind] = model, names, folder
    decode = image_decoder(exports["values"][0])
    files = [encoded(image, "PNG") for image in (picture(40, 50), noise(33, 50), picture(60, 50).rotate(90))]
    pixels = np.stack([decode(file) for file in files])
    requests = [
        prediction_log(signature, place, **inputs)
        for place in range(2)
        for signature, inputs in (("serving_default", {"image_bytes": files}), ("predict_pixels", {"images": pixels}))
    ]
    serve([folder for *_, folder in exports.values()], requests, tmp_path)
    answers = read_answers(tmp_path)
    assert not answers.errors
    for place, (kind, (model, names, _)) in enumerate(exports.items()):
        if precision == "int8":
            for kernel, values, scale in round_to_int8(model):
                kernel.assign(values * scale)
        expected = to_numpy(model(pixels.astype("float32")))
        assert np.ptp(expected, axis=0).min() > 1e-3  # Images differ.
        for outputs in answers.outputs[2 * place : 2 * place + 2]:
            if kind == "values":
                np.testing.assert_allclose(outputs["values"], expected, rtol=1e-4, atol=1e-4)
                continue
            order = np.argsort(-expected, axis=1, kind="stable")
            np.testing.assert_allclose(outputs["scores"], np.take_along_axis(expected, order, axis=1), atol=1e-4)
            assert outputs["labels"].tolist() == [[names[index].encode() for index in row] for row in order]


@pytest.mark.slow
def test_pixels_of_the_original_images(tmp_path):
    """Outputs for depth are compared with Keras, and those of other models with the SavedModel in Python."""
    import tensorflow as tf

    builders = dense.depth, dense.eomt, dense.linear
    folders = [keras_vit.export_saved_model(build(), tmp_path / build.__name__) for build in builders]
    requests, expected = [], []
    for place, folder in enumerate(folders):
        served = tf.saved_model.load(str(folder)).signatures
        for name in [name for name in ("serving_default", *ORIGINAL) if name in served]:
            requests.append(prediction_log(name, place, image_bytes=dense.FILES))
            expected.append(served[name](image_bytes=tf.constant(dense.FILES)))
    serve(folders, requests, tmp_path)
    answers = read_answers(tmp_path)
    assert not answers.errors
    assert len(answers.outputs) == 2 + 4 + 2
    for outputs, known in zip(answers.outputs, expected, strict=True):
        assert outputs["valid"].tolist() == [True, False, True]
        for name, array in known.items():
            if array.dtype == tf.float32:
                np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-4, err_msg=name)
            else:  # A pixel at a border may differ.
                assert (outputs[name] == array.numpy()).mean() > 0.99, name
    model, found = dense.depth(), answers.outputs[1]["depth"]
    for file, image, (height, width) in zip(dense.FILES, found, dense.SIZES, strict=True):
        assert not image[height:].any()
        assert not image[:, width:].any()
        if height:
            pixels = keras_vit.preprocess_input(image_decoder(model)(file).numpy()[None], model)
            depths = dense.resized(to_numpy(model(pixels))[0, ..., 0], (height, width))
            np.testing.assert_allclose(image[:height, :width], depths, rtol=1e-4)
