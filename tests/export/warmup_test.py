"""The requests are parsed with the messages of TensorFlow Serving's own package."""

import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_vit.export.writing import write_warmup

PHOTOGRAPH = b"photograph \xff\x00"
SPECS = {
    "serving_default": tf.TensorSpec([None], tf.string, "image_bytes"),
    "predict_pixels": tf.TensorSpec([None, 5, 7, 3], tf.uint8, "images"),
    "predict_pixels_float": tf.TensorSpec([None, None, None, 3], tf.float32, "images"),
    "embed": tf.TensorSpec([None], tf.string, "image_bytes"),
}
BATCH_SIZES = [1, 4, 300]


def _records(folder, specs=SPECS, batch_sizes=BATCH_SIZES, photograph=PHOTOGRAPH):
    specs = {name: [spec] for name, spec in specs.items()}
    write_warmup(folder, "pets-1.0", specs, [5, 7, 3], photograph, batch_sizes)
    [path] = (folder / "assets.extra").iterdir()
    assert path.name == "tf_serving_warmup_requests"
    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


def _message(signature, batch_size, photograph=PHOTOGRAPH):
    spec = SPECS[signature]
    shape = tf.TensorShape([batch_size, *([] if spec.dtype == tf.string else [5, 7, 3])]).as_proto()
    tensor = tensor_pb2.TensorProto(dtype=spec.dtype.as_datatype_enum, tensor_shape=shape)
    if spec.dtype == tf.string:
        tensor.string_val.append(photograph)
    elif spec.dtype == tf.uint8:
        tensor.int_val.append(128)
    else:
        tensor.float_val.append(128.0)
    request = predict_pb2.PredictRequest(inputs={spec.name: tensor})
    request.model_spec.name = "pets-1.0"
    request.model_spec.signature_name = signature
    return prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))


def test_records_are_the_messages_byte_for_byte(tmp_path):
    expected = [_message(signature, size) for signature in SPECS for size in BATCH_SIZES]
    assert _records(tmp_path) == [message.SerializeToString(deterministic=True) for message in expected]


@pytest.mark.slow
def test_lengths_of_every_size(tmp_path):
    # Lengths from 128 on take two bytes, from 16,384 on three bytes. Four length-prefixed fields are nested.
    for length in (0, 1, *range(60, 132), *range(16_290, 16_390), 2_100_000):
        photograph = bytes(length)
        [record] = _records(tmp_path, {"embed": SPECS["embed"]}, [1], photograph)
        assert record == _message("embed", 1, photograph).SerializeToString(deterministic=True), length


def test_as_many_requests_as_the_server_accepts(tmp_path):
    assert len(_records(tmp_path, batch_sizes=[1] * 250)) == 1000
    with pytest.raises(ValueError, match=r"batch_sizes must have at most 250 numbers.* Received: 251 numbers"):
        write_warmup(tmp_path, "pets", {name: [] for name in SPECS}, [5, 7, 3], PHOTOGRAPH, [1] * 251)
