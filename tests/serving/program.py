"""Starts `tests.serving.server`, which runs SavedModels as TensorFlow Serving does."""

import dataclasses
import os
import pathlib
import pickle
import subprocess
import sys
import types

import numpy as np

from tests.export.exports import meta_graph

_ROOT = pathlib.Path(__file__).parents[2]


def prediction_log(signature, model=0, **inputs):
    """A recorded request in TensorFlow Serving's own class.

    Args:
        signature: Name of the signature.
        model: Index of the request's model in the list of models.
        **inputs: {name: array}
    """
    import tensorflow as tf
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

    spec = model_pb2.ModelSpec(name="model", signature_name=signature, version_label=str(model))
    tensors = {name: tf.make_tensor_proto(value) for name, value in inputs.items()}
    request = predict_pb2.PredictRequest(model_spec=spec, inputs=tensors)
    return prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))


@dataclasses.dataclass(frozen=True)
class Clients:
    """Clients that send requests at the same time, after the other requests have been answered.

    Args:
        requests: List of `PredictionLog`.
        threads: Number of clients.
        rounds: Number of rounds. The memory in use is measured after each.
        number: Minimum number of answers in a round.
        seconds: Minimum duration of a round.
    """

    requests: list
    threads: int
    rounds: int
    number: int
    seconds: float = 0.0


def serve(models, requests, folder, clients=None):
    """Sends requests to models one by one. Then all clients send their requests at the same time.

    Args:
        models: Folders of SavedModels, each of one version.
        requests: List of `PredictionLog`.
        folder: Folder for files.
        clients: `Clients`.
    """
    known = [meta_graph(model).signature_def for model in models]
    work = {"models": [str(model) for model in models], "requests": [_tensors(known, log) for log in requests]}
    work["clients"] = clients and vars(clients) | {"requests": [_tensors(known, log) for log in clients.requests]}
    (folder / "work").write_bytes(pickle.dumps(work))
    # Weights are treated as frozen, as in an export's compose.yaml.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"}
    command = [sys.executable, "-m", "tests.serving.server", str(folder / "work"), str(folder / "answers")]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stderr}"


def read_answers(folder):
    """The answers that `serve` wrote into a folder.

    They have these attributes:

    * outputs: a list of {output name: array} for every request, empty if it failed;
    * errors: {index of a failed request: reason};
    * report: {name: count or measurement}. "loaded_kib" is the memory in use after models and requests are loaded.
      "peak_kib" is the peak memory from then until the last request is answered.
    """
    return types.SimpleNamespace(**pickle.loads((folder / "answers").read_bytes()))


def _tensors(signatures, log):
    """The index of a request's model, {input tensor: array} and {output: tensor}."""
    import tensorflow as tf

    request = log.predict_log.request
    place = int(request.model_spec.version_label or 0)
    signature = signatures[place][request.model_spec.signature_name]
    arrays = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
    feeds = {signature.inputs[name].name: np.asarray(array) for name, array in arrays.items()}
    return place, feeds, {name: info.name for name, info in signature.outputs.items()}
