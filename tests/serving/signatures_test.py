"""Every signature in C++ equals Keras, and the warm-up file is answered."""

import numpy as np
import pytest

from tests.pictures import encoded, exif_segment, noise, picture
from tests.serving.conftest import LABELS, TOP_K
from tests.serving.expected import expected_outputs
from tests.serving.program import prediction_log, replay
from tests.test_case import TOLERANCE

OF_FILES = ("serving_default", "embed", "tokens", "explain")
OF_PIXELS = {"predict_pixels": "uint8", "predict_pixels_float": "float32"}


def _requests():
    """For every signature a batch of different images, and one image alone."""
    files = [
        encoded(picture(16, 24), "PNG"),
        encoded(picture(97, 61), "JPEG", exif=exif_segment(6, "<")),
        encoded(noise(40, 50), "JPEG"),
        encoded(picture(20, 50), "GIF"),
        encoded(picture(30, 20), "BMP"),
        encoded(picture(33, 24, "L"), "PNG"),
        encoded(noise(50, 40), "WEBP", lossless=True),
    ]
    pixels = np.random.default_rng(0).integers(0, 256, (7, 16, 24, 3))
    for rows in (slice(7), slice(2, 3)):
        yield from (prediction_log(signature, image_bytes=files[rows]) for signature in OF_FILES)
        for signature, dtype in OF_PIXELS.items():
            yield prediction_log(signature, images=pixels[rows].astype(dtype))


def assert_outputs(outputs, expected):
    assert set(outputs) == set(expected)
    for name, array in outputs.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(array, expected[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
        else:
            np.testing.assert_array_equal(array.astype(expected[name].dtype), expected[name], name)


def test_warm_up_and_every_signature(program, exported, tmp_path):
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    model, folder = exported
    path = folder / "assets.extra" / "tf_serving_warmup_requests"
    warmup = [record.numpy() for record in tf.data.TFRecordDataset(path)]
    own = list(_requests())
    answers, _ = replay(program, folder, [*warmup, *own], tmp_path)
    requests = [prediction_log_pb2.PredictionLog.FromString(record) for record in warmup]
    assert {log.predict_log.request.model_spec.signature_name for log in requests} == {*OF_FILES, *OF_PIXELS}
    for request, outputs in zip([*requests, *own], answers, strict=True):
        assert_outputs(outputs, expected_outputs(model, LABELS, TOP_K, request))
    assert np.ptp(answers[len(warmup)]["probabilities"], axis=0).max() > 0.01  # The pictures differ.


def test_what_no_signature_takes_is_an_error(program, exported, tmp_path):
    turned = np.zeros((1, 24, 16, 3), "uint8")  # As many patches as the model has, in another grid.
    cases = [
        ("serve", {"image_bytes": ["a"]}, "NOT_FOUND: There is no signature serve"),
        ("embed", {"images": ["a"]}, "INVALID_ARGUMENT: The inputs are not those of signature embed"),
        ("embed", {"image_bytes": [1]}, "INVALID_ARGUMENT: The inputs are not those of signature embed"),
        ("predict_pixels", {"images": turned}, "INVALID_ARGUMENT"),
        ("predict_pixels_float", {"images": turned.astype("float32")}, "INVALID_ARGUMENT"),
    ]
    requests = [prediction_log(signature, **inputs) for signature, inputs, _ in cases]
    with pytest.raises(RuntimeError) as caught:
        replay(program, exported[1], requests, tmp_path)
    for index, (_, _, message) in enumerate(cases):
        assert f"request {index}: {message}" in str(caught.value)
