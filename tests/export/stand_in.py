"""A server with TensorFlow Serving's interfaces for tests of clients. It runs a SavedModel.

Its requests and responses follow TensorFlow Serving's api_rest.md, util/json_tensor.cc and
servables/tensorflow/predict_util.cc.
"""

import base64
import concurrent.futures
import contextlib
import http.server
import json
import re
import threading

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

_FIELDS = {
    tf.float32: "float_val",
    tf.int32: "int_val",
    tf.uint8: "int_val",
    tf.string: "string_val",
    tf.bool: "bool_val",
}
_NUMBERS = {tf.uint8: (int,), tf.int32: (int,), tf.float32: (int, float)}


class RefusedError(Exception):
    """A request that TensorFlow Serving refuses, with the reason."""


@contextlib.contextmanager
def serve(signatures):
    """Serves version 1 of "pets", labelled "stable", with a SavedModel's signatures. Yields the REST and gRPC ports."""
    served = _Served(signatures)
    rest = http.server.ThreadingHTTPServer(("localhost", 0), type("Rest", (_Rest,), {"served": served}))
    threading.Thread(target=rest.serve_forever).start()
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), options=options)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(_Service(served), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        yield rest.server_port, port
    finally:
        server.stop(None).wait()
        rest.shutdown()
        rest.server_close()


class _Served:
    """The served model, which both interfaces share."""

    def __init__(self, signatures):
        self._signatures = signatures

    def inputs(self, signature):
        """The inputs of a signature, {name: `tf.TensorSpec`}."""
        signature = signature or "serving_default"
        if signature not in self._signatures:
            raise RefusedError(f"Serving signature name: {signature!r} not found")
        return self._signatures[signature].structured_input_signature[1]

    def predict(self, request):
        """The `PredictResponse` to a `PredictRequest`."""
        model = request.model_spec
        if (model.name, model.version_label) not in (("pets", ""), ("pets", "stable")):
            raise RefusedError(f"Servable not found: {model}")
        specs = self.inputs(model.signature_name)
        if request.inputs.keys() != specs.keys():
            raise RefusedError(f"Expected {list(specs)}, received {list(request.inputs)}")
        arrays = {}
        for name, spec in specs.items():
            tensor = request.inputs[name]
            array = tf.make_ndarray(tensor)
            if tensor.dtype != spec.dtype.as_datatype_enum or not spec.shape.is_compatible_with(array.shape):
                raise RefusedError(f"Expected {spec}, received type {tensor.dtype} of shape {array.shape}")
            arrays[name] = tf.constant(array, spec.dtype)
        outputs = self._signatures[model.signature_name or "serving_default"](**arrays)
        response = predict_pb2.PredictResponse()
        for name, output in outputs.items():
            response.outputs[name].CopyFrom(_tensor(output.dtype, output.shape, output.numpy().ravel().tolist()))
        return response


class _Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The gRPC interface."""

    def __init__(self, served):
        self._served = served

    def Predict(self, request, context):
        try:
            return self._served.predict(request)
        except RefusedError as refused:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))


class _Rest(http.server.BaseHTTPRequestHandler):
    """The REST interface."""

    served = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self._answer(200, self._predict(body))
        except RefusedError as refused:
            self._answer(400, {"error": str(refused)})

    def _answer(self, status, answer):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def _predict(self, body):
        path = re.fullmatch(r"/v1/models/([^/:]+)/labels/([^/:]+):predict", self.path)
        if not path:
            raise RefusedError(f"Malformed request: {self.path}")
        request = predict_pb2.PredictRequest()
        request.model_spec.name, request.model_spec.version_label = path.groups()
        by_row = self._read_body(body, request)
        outputs = {name: _plain(name, tensor) for name, tensor in self.served.predict(request).outputs.items()}
        if not by_row:
            return {"outputs": outputs}
        return {"predictions": [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]}

    def _read_body(self, body, request):
        """Copies a body into a request; returns whether it is in the row format."""
        try:
            body = json.loads(body)
            request.model_spec.signature_name = body.pop("signature_name", "")
            specs = self.served.inputs(request.model_spec.signature_name)
            [(key, value)] = body.items()
            by_row = {"instances": True, "inputs": False}[key]
            if by_row and not isinstance(value, list):
                raise RefusedError("Expecting 'instances' to be a list")
            for name, spec in specs.items():
                values = [_unnamed(row, specs, name) for row in value] if by_row else _unnamed(value, specs, name)
                shape = [len(values), *_shape(values[0])] if by_row else _shape(values)
                request.inputs[name].CopyFrom(_tensor(spec.dtype, shape, _leaves(values, shape, spec.dtype)))
            return by_row
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise RefusedError(repr(error)) from error

    def log_message(self, *arguments):
        pass


def _unnamed(value, specs, name):
    """The value of an input in {name: value}. The value of the only input may have no name."""
    if len(specs) == 1 and (not isinstance(value, dict) or value.keys() == {"b64"}):
        return value
    if value.keys() != specs.keys():
        raise RefusedError(f"keys must be equal to: {', '.join(specs)}")
    return value[name]


def _shape(value):
    return [len(value), *(_shape(value[0]) if value else [])] if isinstance(value, list) else []


def _leaves(value, shape, dtype):
    """The values in nested lists, which must have the given shape."""
    if shape:
        if not isinstance(value, list) or len(value) != shape[0]:
            raise RefusedError(f"Expected a list of {shape[0]}")
        return [leaf for part in value for leaf in _leaves(part, shape[1:], dtype)]
    if dtype == tf.string:
        return [base64.b64decode(value["b64"], validate=True) if isinstance(value, dict) else value.encode()]
    if type(value) not in _NUMBERS[dtype]:
        raise RefusedError(f"JSON Value: {value!r} is not of expected type: {dtype.name}")
    return [value]


def _tensor(dtype, shape, values):
    """A TensorProto with the values in the field of their type, as in TensorFlow Serving."""
    tensor = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum, tensor_shape=tf.TensorShape(shape).as_proto())
    getattr(tensor, _FIELDS[dtype]).extend(values)
    return tensor


def _plain(name, tensor):
    """The values as nested lists for JSON."""
    array = tf.make_ndarray(tensor)
    if array.dtype != object:
        return array.tolist()
    assert not name.endswith("_bytes")  # The server would return those in base64.
    return np.vectorize(bytes.decode, otypes=[object])(array).tolist()
