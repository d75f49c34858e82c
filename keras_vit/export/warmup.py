"""Requests that TensorFlow Serving sends to a model before it serves it, so that no client waits for the first."""

import pathlib

NAME = "tf_serving_warmup_requests"
MAX_RECORDS = 1000
"""With more the server does not load a model (tensorflow_serving/g3doc/saved_model_warmup.md)."""
_GRAY = 128


def write_warmup(folder, model_name, specs, photograph, batch_sizes):
    """Writes `assets.extra/tf_serving_warmup_requests`: a request for each signature and each batch size.

    The file is a TFRecord of `tensorflow.serving.PredictionLog` messages. Those have few fields, which are written here
    in protobuf's wire format, so that nobody needs the messages' own package to export.

    Args:
        folder: Of the SavedModel.
        model_name: What clients call the model.
        specs: {name of the signature: `tf.TensorSpec` of its one input}, with the size of an image in every dimension
            but the first.
        photograph: What the signatures of encoded images get.
        batch_sizes: Numbers of images.

    Raises:
        ValueError: If these are more requests than a server accepts.
    """
    import tensorflow as tf

    if len(specs) * len(batch_sizes) > MAX_RECORDS:
        raise ValueError(
            f"batch_sizes may be {MAX_RECORDS // len(specs)} numbers, since the server accepts {MAX_RECORDS} requests "
            f"to warm up, and there are {len(specs)} signatures. Received: {len(batch_sizes)} numbers."
        )
    path = pathlib.Path(folder) / "assets.extra" / NAME
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, spec in specs.items():
            for batch_size in batch_sizes:
                tensor = _tensor(spec, batch_size, photograph)
                writer.write(_prediction_log(model_name, signature, spec.name, tensor))


def _tensor(spec, batch_size, photograph):
    import tensorflow as tf

    # One value stands for all of them (tensor.proto, "the last value is repeated"): kilobytes instead of megabytes.
    tensor = tf.make_tensor_proto(photograph if spec.dtype == tf.string else _GRAY, spec.dtype, shape=[])
    tensor.tensor_shape.CopyFrom(tf.TensorShape([batch_size, *spec.shape[1:]]).as_proto())
    return tensor


def _prediction_log(model_name, signature, input_name, tensor):
    """`PredictionLog(predict_log=PredictLog(request=PredictRequest(...)))`, with the numbers of their fields."""
    model_spec = _field(1, model_name.encode()) + _field(3, signature.encode())
    entry = _field(1, input_name.encode()) + _field(2, tensor.SerializeToString())
    request = _field(1, model_spec) + _field(2, entry)
    return _field(6, _field(1, request))


def _field(number, content):
    """A field of protobuf's wire format that says its length."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value):
    """A whole number in groups of seven bits, the lowest first; the highest bit says that more follow."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
