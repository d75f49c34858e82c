"""Warm-up requests. TensorFlow Serving runs them before it serves a model, so that the first client does not wait."""

import pathlib

import tensorflow as tf

NAME = "tf_serving_warmup_requests"
MAX_RECORDS = 1000
"""Maximum number of requests (tensorflow_serving/g3doc/saved_model_warmup.md). Servers refuse models with more."""
_GRAY = 128


def write_warmup(folder, model_name, specs, photograph, batch_sizes):
    """Writes `assets.extra/tf_serving_warmup_requests`: a request for each signature and each batch size.

    The file is a TFRecord of `tensorflow.serving.PredictionLog` messages. They are written in protobuf's wire format
    directly, so that an export does not need the package of TensorFlow Serving.

    Args:
        folder: Folder of the SavedModel.
        model_name: Name by which clients request the model.
        specs: {name of the signature: `tf.TensorSpec` of its input}. All dimensions but the first must be known.
        photograph: Contents of an image file, for the signatures whose inputs are encoded images.
        batch_sizes: Batch sizes of the requests.

    Raises:
        ValueError: If there are more requests than a server accepts.
    """
    if len(specs) * len(batch_sizes) > MAX_RECORDS:
        raise ValueError(
            f"batch_sizes must have at most {MAX_RECORDS // len(specs)} numbers, because a server accepts "
            f"{MAX_RECORDS} warm-up requests, and there are {len(specs)} signatures. Received: {len(batch_sizes)} "
            f"numbers."
        )
    path = pathlib.Path(folder) / "assets.extra" / NAME
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, spec in specs.items():
            # One value is stored for all elements (tensor.proto: "the last value is repeated"), which saves megabytes.
            tensor = tf.make_tensor_proto(photograph if spec.dtype == tf.string else _GRAY, spec.dtype, shape=[])
            for batch_size in batch_sizes:
                tensor.tensor_shape.CopyFrom(tf.TensorShape([batch_size, *spec.shape[1:]]).as_proto())
                writer.write(_prediction_log(model_name, signature, spec.name, tensor))


def _prediction_log(model_name, signature, input_name, tensor):
    """The message `PredictionLog(predict_log=PredictLog(request=PredictRequest(...)))`, encoded by field numbers."""
    model_spec = _field(1, model_name.encode()) + _field(3, signature.encode())
    entry = _field(1, input_name.encode()) + _field(2, tensor.SerializeToString())
    request = _field(1, model_spec) + _field(2, entry)
    return _field(6, _field(1, request))


def _field(number, content):
    """A length-delimited field of protobuf's wire format."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value):
    """An integer in groups of seven bits, the lowest bits first. If a byte's highest bit is 1, more bytes follow."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
