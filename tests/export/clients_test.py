"""The clients in the README and in docs/serving.md, as they stand, and a server with TensorFlow Serving's interfaces.

The server answers with a SavedModel. What it accepts and returns is that of tensorflow_serving/g3doc/api_rest.md, and of
util/json_tensor.cc and servables/tensorflow/predict_util.cc there.
"""

import base64
import concurrent.futures
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow as tf
import yaml
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

import keras_vit
from keras_vit.decoding import image_decoder
from tests.pictures import encoded, picture
from tests.test_case import TENSORFLOW, randomize, to_numpy

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="they know nothing of the backend that exported")
ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text().split("\n## Serving\n")[1].split("\n## ")[0]
MANUAL = (ROOT / "docs" / "serving.md").read_text()
LABELS = ["ant", "bee", "chien égaré", "dog", "elk", "fox"]
CONFIG = keras_vit.ViTConfig(patch_size=(56, 32), hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
ADDRESS = "http://localhost:8501/v1/models/pets"
FIELDS = {
    tf.float32: ("float_val", float),
    tf.int32: ("int_val", int),
    tf.uint8: ("int_val", int),
    tf.string: ("string_val", bytes),
    tf.bool: ("bool_val", bool),
}


def _blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


class Refused(Exception):
    """A request that TensorFlow Serving refuses: its status, and why."""


def _tensor(dtype, shape, values):
    """A message that holds values in the field of their type, as the server makes them."""
    tensor = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum, tensor_shape=tf.TensorShape(shape).as_proto())
    getattr(tensor, FIELDS[dtype][0]).extend(values)
    return tensor


class Served:
    """Version 1 of a model, with the label "stable"."""

    def __init__(self, path):
        self._signatures = tf.saved_model.load(str(path)).signatures

    def input(self, signature):
        if signature not in self._signatures:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"Serving signature name: {signature!r} not found")
        [spec] = self._signatures[signature].structured_input_signature[1].values()
        return spec

    def predict(self, request):
        """A `PredictResponse` to a `PredictRequest`."""
        model = request.model_spec
        version = model.version.value if model.HasField("version") else 1
        if (model.name, version) != ("pets", 1):
            raise Refused(grpc.StatusCode.NOT_FOUND, f"Servable not found: {model}")
        if model.version_label not in ("", "stable"):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"Unrecognized version label: {model.version_label}")
        signature = model.signature_name or "serving_default"
        spec = self.input(signature)
        arrays = {name: (tensor.dtype, tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()}
        [(name, (dtype, array))] = arrays.items()
        if (name, dtype) != (spec.name, spec.dtype.as_datatype_enum) or not spec.shape.is_compatible_with(array.shape):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"Expected {spec}, received {name} {dtype} {array.shape}")
        response = predict_pb2.PredictResponse()
        for name, output in self._signatures[signature](**{spec.name: tf.constant(array, spec.dtype)}).items():
            tensor = _tensor(output.dtype, output.shape, output.numpy().ravel().tolist())
            response.outputs[name].CopyFrom(tensor)
        return response


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The server's gRPC interface."""

    def __init__(self, served):
        self._served = served

    def Predict(self, request, context):
        try:
            return self._served.predict(request)
        except Refused as refused:
            context.abort(*refused.args)


class Handler(http.server.BaseHTTPRequestHandler):
    """The server's REST interface."""

    served = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self._answer(200, self._predict(body))
        except Refused as refused:
            status, reason = refused.args
            self._answer({grpc.StatusCode.NOT_FOUND: 404}.get(status, 400), {"error": reason})

    def do_GET(self):
        status = {"error_code": "OK", "error_message": ""}
        answer = {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": status}]}
        self._answer(*((200, answer) if self.path == "/v1/models/pets" else (404, {"error": self.path})))

    def _answer(self, status, answer):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def _predict(self, body):
        path = re.fullmatch(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?:predict", self.path)
        if not path:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"Malformed request: {self.path}")
        name, version, label = path.groups()
        request = predict_pb2.PredictRequest()
        request.model_spec.name = name
        if version:
            request.model_spec.version.value = int(version)
        if label:
            request.model_spec.version_label = label
        by_row = self._read_json(body, request)
        outputs = {key: _json_values(key, tensor) for key, tensor in self.served.predict(request).outputs.items()}
        if not by_row:
            return {"outputs": outputs}
        return {"predictions": [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]}

    def _read_json(self, body, request):
        """Puts a body into a request; returns whether it is in the format of rows."""
        try:
            body = json.loads(body)
            request.model_spec.signature_name = body.pop("signature_name", "")
            [(key, value)] = body.items()
            spec = self.served.input(request.model_spec.signature_name or "serving_default")
            by_row = {"instances": True, "inputs": False}[key]
            if by_row:
                value = [
                    row if _is_value(row) else dict([(spec.name, row.pop(spec.name)), *row.items()]) for row in value
                ]
                value = [row if _is_value(row) else _only_value(row) for row in value]
                shape = [len(value), *_shape(value[0])]
            else:
                value = value if _is_value(value) else _only_value({spec.name: value[spec.name]})
                shape = _shape(value)
            request.inputs[spec.name].CopyFrom(_tensor(spec.dtype, shape, _leaves(value, shape, spec.dtype)))
            return by_row
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, repr(error)) from error

    def log_message(self, *arguments):
        pass


def _is_value(value):
    return not isinstance(value, dict) or value.keys() == {"b64"}


def _only_value(named):
    [value] = named.values()
    return value


def _shape(value):
    return [len(value), *_shape(value[0])] if isinstance(value, list) and value else []


def _leaves(value, shape, dtype):
    if shape:
        if not isinstance(value, list) or len(value) != shape[0]:
            raise ValueError(f"expected a list of {shape[0]}")
        return [leaf for part in value for leaf in _leaves(part, shape[1:], dtype)]
    if dtype == tf.string:
        return [base64.b64decode(value["b64"], validate=True) if isinstance(value, dict) else value.encode()]
    if type(value) not in {tf.uint8: (int,), tf.float32: (int, float)}[dtype]:
        raise TypeError(f"expected {dtype.name}, received {value!r}")
    return [value]


def _json_values(name, tensor):
    array = tf.make_ndarray(tensor)
    if array.dtype != object:
        return array.tolist()
    assert not name.endswith("_bytes")  # Those would be {"b64": ...}.
    return np.vectorize(bytes.decode, otypes=[object])(array).tolist()


@pytest.fixture(scope="module")
def model():
    model = keras_vit.ViT(CONFIG, input_shape=(224, 224, 3), classes=len(LABELS), include_preprocessing=True)
    return randomize(model, scale=0.5)


@pytest.fixture(scope="module")
def ports(model, tmp_path_factory):
    """(of REST, of gRPC) of a server"""
    path = tmp_path_factory.mktemp("models") / "pets"
    served = Served(keras_vit.export_saved_model(model, path, labels=LABELS, top_k=3))
    rest = http.server.ThreadingHTTPServer(("localhost", 0), type("Rest", (Handler,), {"served": served}))
    threading.Thread(target=rest.serve_forever).start()
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    service = grpc.server(concurrent.futures.ThreadPoolExecutor(2), options=options)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(served), service)
    port = service.add_insecure_port("localhost:0")
    service.start()
    yield rest.server_port, port
    service.stop(None).wait()
    rest.shutdown()
    rest.server_close()


@pytest.fixture
def client(ports, tmp_path, monkeypatch):
    """A folder with a photograph, where the addresses in the documents are those of the server."""
    rest, rpc = ports
    urlopen, insecure_channel = urllib.request.urlopen, grpc.insecure_channel

    def open_there(url, *arguments):
        assert url.startswith("http://localhost:8501/")
        return urlopen(url.replace("8501", str(rest)), *arguments)

    def channel_there(target, *arguments, **options):
        assert target == "localhost:8500"
        return insecure_channel(f"localhost:{rpc}", *arguments, **options)

    monkeypatch.setattr(urllib.request, "urlopen", open_there)
    monkeypatch.setattr(grpc, "insecure_channel", channel_there)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".curlrc").write_text(f'connect-to = "localhost:8501:localhost:{rest}"\nsilent\nfail\n')
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    (tmp_path / "photo.jpg").write_bytes(encoded(picture(130, 90), "JPEG"))
    return tmp_path


def _expected(model, pixels):
    """[(label, score)] of an image, the best three."""
    scores = model.predict(pixels[None], verbose=0)[0]
    assert np.ptp(scores) > 0.1
    return [(LABELS[index], scores[index]) for index in np.argsort(-scores)[:3]]


def _photo(client, model):
    return image_decoder(model)((client / "photo.jpg").read_bytes()).numpy()


@pytest.mark.parametrize("code", _blocks(README, "python"))
def test_clients_in_the_readme(client, model, capsys, code):
    exec(compile(code, "README.md", "exec"), {})
    expected = [f"{label}: {score:.1%}" for label, score in _expected(model, _photo(client, model))]
    assert capsys.readouterr().out.splitlines() == expected
    (client / "photo.jpg").write_bytes(b"no photograph")
    with pytest.raises(SystemExit, match="photo.jpg cannot be read as an image"):
        exec(compile(code, "README.md", "exec"), {})


def test_readme_has_both_clients():
    assert [("urllib" in code, "grpc" in code) for code in _blocks(README, "python")] == [(True, False), (False, True)]


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_curl(client, model):
    answers = []
    for code in _blocks(MANUAL, "bash"):
        result = subprocess.run(["bash", "-eu", "-c", code], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        answers.append(json.loads(result.stdout))
    [default], embedded = answers[0].pop("predictions"), answers[1].pop("outputs")
    assert answers == [{}, {}]
    labels, scores = zip(*_expected(model, _photo(client, model)), strict=True)
    assert (tuple(default["labels"]), default["valid"]) == (labels, True)
    np.testing.assert_allclose(default["scores"], scores, atol=1e-5)
    np.testing.assert_allclose(np.take(default["probabilities"], default["classes"]), scores, atol=1e-5)
    representation = keras_vit.features(model, _photo(client, model)[None], ["pooling"])["pooling"]
    np.testing.assert_allclose(embedded["embedding"], to_numpy(representation), atol=1e-5)
    assert embedded["valid"] == [True]


def test_python_in_the_manual(client, model, capsys):
    printed = []
    for code in _blocks(MANUAL, "python"):
        exec(compile(code, "serving.md", "exec"), {})
        printed.append(capsys.readouterr().out.strip())
    gray = _expected(model, np.full((224, 224, 3), 127.5, "float32"))
    assert printed == [str([label for label, _ in gray]), "(8, 4, 7, 12)"]


PHOTO = {"b64": base64.b64encode(encoded(picture(8, 9), "PNG")).decode()}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("", {"instances": [PHOTO]}, 200),
        ("/versions/1", {"instances": [{"image_bytes": PHOTO}]}, 200),
        ("/labels/stable", {"inputs": [PHOTO, PHOTO]}, 200),
        ("", {"signature_name": "predict_pixels", "instances": np.zeros((1, 224, 224, 3), int).tolist()}, 200),
        ("/versions/2", {"instances": [PHOTO]}, 404),
        ("/labels/latest", {"instances": [PHOTO]}, 400),
        ("/label/stable", {"instances": [PHOTO]}, 400),
        ("", {"instances": []}, 400),
        ("", {"images": [PHOTO]}, 400),
        ("", {"instances": [{"image": PHOTO}]}, 400),
        ("", {"instances": [{"image_bytes": PHOTO, "size": 3}]}, 400),
        ("", {"instances": PHOTO}, 400),
        ("", {"instances": [{"b64": "*"}]}, 400),
        ("", {"instances": [PHOTO], "inputs": [PHOTO]}, 400),
        ("", {"signature_name": "features", "instances": [PHOTO]}, 400),
        ("", {"signature_name": "predict_pixels", "instances": np.zeros((1, 224, 224, 3)).tolist()}, 400),
        ("", {"signature_name": "predict_pixels", "instances": np.zeros((1, 224, 225, 3), int).tolist()}, 400),
    ],
)
def test_the_server_refuses_what_tensorflow_serving_does(client, path, body, status):
    try:
        with urllib.request.urlopen(f"{ADDRESS}{path}:predict", json.dumps(body).encode()) as response:
            found = response.status
    except urllib.error.HTTPError as error:
        found = error.code
        assert json.load(error)["error"]
    assert found == status


def test_kubernetes_manifest():
    [manifest] = [yaml.safe_load(block) for block in _blocks(MANUAL, "yaml")]
    pod = manifest["spec"]["template"]
    assert manifest["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    composed = yaml.safe_load(_compose("pets"))["services"]["serving"]["command"]
    assert container["args"][: len(composed)] == composed
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in probes.values()} == {8501}
    assert all(f"`{probe['path']}`" in MANUAL for probe in probes.values())


def _compose(name):
    from keras_vit.export import operator_files

    return operator_files._COMPOSE.format(name=name, xla="")
