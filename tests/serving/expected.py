"""The answers that a server must give, computed by Keras in this process."""

import functools

import numpy as np

import keras_vit
from keras_vit.data.decoding import image_decoder
from tests.test_case import TOLERANCE, to_numpy


def assert_outputs(outputs, expected):
    assert set(outputs) == set(expected)
    for name, array in outputs.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(array, expected[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
        elif array.dtype == object:
            known = np.vectorize(str.encode, otypes=[object])(expected[name])
            np.testing.assert_array_equal(array, known, name)
        else:
            np.testing.assert_array_equal(array.astype(expected[name].dtype), expected[name], name)


def expected_outputs(model, labels, top_k, log):
    """The outputs for a recorded request (a `PredictionLog`) with decodable images only."""
    import tensorflow as tf

    request = log.predict_log.request
    [(name, proto)] = request.inputs.items()
    rows = tf.make_ndarray(proto)
    of_files = name == "image_bytes"
    pixels = np.stack([_decoded(model, row) for row in rows]) if of_files else rows
    outputs = _outputs(model, labels, top_k, request.model_spec.signature_name, pixels.astype("float32"))
    has_valid = request.model_spec.signature_name != "predict_pixels"
    return outputs | ({"valid": np.ones(len(rows), bool)} if has_valid else {})


@functools.cache
def _decoded(model, content):
    return image_decoder(model)(content).numpy()


def _outputs(model, labels, top_k, signature, pixels):
    if signature == "embed":
        return {"embedding": keras_vit.features(model, pixels, ["pooling"])["pooling"]}
    if signature == "tokens":
        return {"tokens": keras_vit.features(model, pixels, ["encoder_norm"])["encoder_norm"]}
    if signature == "explain":
        return {"rollout": keras_vit.attention_rollout(model, pixels)}
    assert signature in ("serving_default", "predict_pixels", "predict_pixels_float")
    return named(to_numpy(model(pixels)), labels, top_k)


def named(probabilities, labels, top_k):
    """The outputs of a signature for these probabilities."""
    classes = np.argsort(-probabilities, axis=1)[:, :top_k]
    return {
        "probabilities": probabilities,
        "classes": classes,
        "labels": np.array(labels)[classes],
        "scores": np.take_along_axis(probabilities, classes, axis=1),
    }
