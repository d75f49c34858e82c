"""What an export can be asked for, in C++."""

import json

import numpy as np
import pytest

import keras_vit
from tests.models.tiny import STEM, tiny_model
from tests.pictures import encoded, picture
from tests.serving.program import prediction_log, replay
from tests.test_case import TENSORFLOW, assert_close, randomize, rest_slow

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="what is written is the same on every backend")
OPTIONS = {
    "compiled": ({}, {"jit_compile": True, "batch_sizes": (2, 5)}),
    "bfloat16": ({}, {"precision": "bfloat16"}),
    "int8": ({}, {"precision": "int8"}),
    "hybrid of any size": ({"stem": STEM, "input_shape": (None, None, 3)}, {"image_size": (32, 48)}),
}


@pytest.mark.parametrize("case", rest_slow(OPTIONS))
def test_in_c_as_in_python(case, program, tmp_path):
    import tensorflow as tf

    changes, options = OPTIONS[case]
    model = randomize(tiny_model(classifier_activation="softmax", **changes), scale=0.3)
    folder = keras_vit.export_saved_model(model, tmp_path / "model", **options)
    files = [encoded(picture(40 + 7 * index, 50), "JPEG") for index in range(3)]
    size = options.get("image_size") or model.input_shape[1:3]
    pixels = np.random.default_rng(0).integers(0, 256, (7, *size, 3)).astype("uint8")
    signatures = tf.saved_model.load(str(folder)).signatures
    requests, expected = [], []
    for name, signature in signatures.items():
        [spec] = signature.structured_input_signature[1].values()
        batch = tf.constant(files) if spec.dtype == tf.string else tf.cast(pixels, spec.dtype)
        requests.append(prediction_log(name, **{spec.name: batch.numpy()}))
        expected.append(signature(**{spec.name: batch}))
    answers, _ = replay(program, folder, requests, tmp_path)
    for outputs, known in zip(answers, expected, strict=True):
        assert set(outputs) == set(known)
        for name, array in outputs.items():
            if array.dtype == np.float32:
                assert_close(array, known[name])
            else:
                np.testing.assert_array_equal(array, known[name])
    parity = json.loads((folder / "keras_vit.json").read_text())["parity"]
    # Smaller weights are judged on parts of the photographs too.
    assert parity["images"] == (32 if "precision" in options else 4)
    assert parity["top_1_agreement"] >= 0.95
    if "image_size" in options:
        assert signatures["predict_pixels"].structured_input_signature[1]["images"].shape == [None, None, None, 3]
