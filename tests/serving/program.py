"""Builds and runs the C++ program `serve`, which runs SavedModels as TensorFlow Serving does."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

import filelock

SOURCES = sorted(path for path in pathlib.Path(__file__).parent.iterdir() if path.suffix in (".cc", ".h"))
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
# These linkers read TensorFlow's library of 1 GB several times faster than the default one.
LINKER = next((name for name in ("lld", "gold") if shutil.which(f"ld.{name}")), None)


def build(folder):
    """Compiles the program against the headers and libraries of the installed TensorFlow.

    Args:
        folder: Folder of the program. A program from the same sources and TensorFlow is reused. If several
            processes build at once, only one compiles.

    Returns:
        Path of the program.
    """
    import tensorflow as tf

    main = next(path for path in SOURCES if path.name == "serve.cc")
    libraries = tf.sysconfig.get_lib()
    command = [COMPILER, "-O0", "-w", *tf.sysconfig.get_compile_flags(), str(main), f"-L{libraries}"]
    # The whole library is linked, because the program needs its session factories without naming them.
    command += ["-Wl,--no-as-needed", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    command += [f"-Wl,-rpath,{libraries}", "-pthread", *([f"-fuse-ld={LINKER}"] if LINKER else [])]
    content = "".join([tf.__version__, *command, *(path.read_text() for path in SOURCES)])
    program = pathlib.Path(folder) / f"serve-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    with filelock.FileLock(f"{program}.lock"):
        if not program.exists():
            unfinished = program.with_suffix(".unfinished")
            result = subprocess.run([*command, "-o", str(unfinished)], capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
            unfinished.rename(program)
    return program


def prediction_log(signature, model=0, **inputs):
    """A recorded request, serialised with TensorFlow Serving's own class.

    Args:
        signature: Name of the signature.
        model: Index of the request's model in the program's list of models.
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


@dataclasses.dataclass(frozen=True)
class Answers:
    """The answers of the program.

    Args:
        outputs: {output name: array} for every request, empty if it failed.
        errors: {index of a failed request: reason}
        report: Counts and measurements of the program, a dictionary.
    """

    outputs: list
    errors: dict
    report: dict


def serve(program, models, requests, folder, clients=None):
    """Runs the program: it sends the requests to the models one by one, then runs the clients at the same time.

    Args:
        program: Path of the program.
        models: Folders of SavedModels, each of one version.
        requests: List of `PredictionLog`.
        folder: Folder for the program's files.
        clients: `Clients`.
    """
    files = [_written(requests, folder / "requests"), folder / "responses"]
    arguments = ["replay", *files]
    if clients:
        numbers = [clients.threads, clients.rounds, clients.number, clients.seconds]
        arguments = ["load", *files, _written(clients.requests, folder / "clients"), *numbers]
    # Weights are treated as frozen, as in an export's compose.yaml.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"}
    command = [str(argument) for argument in (program, *arguments, *models)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {result.returncode}\n{result.stderr}")
    (folder / "errors").write_text(result.stderr)
    (folder / "report.json").write_text(result.stdout)


def read_answers(folder):
    """The `Answers` that `serve` wrote into a folder."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    records = tf.data.TFRecordDataset(folder / "responses")
    messages = [predict_pb2.PredictResponse.FromString(record.numpy()) for record in records]
    outputs = [{name: tf.make_ndarray(proto) for name, proto in m.outputs.items()} for m in messages]
    report = json.loads((folder / "report.json").read_text())
    found = re.findall(r"^request (\d+): (.*)$", (folder / "errors").read_text(), re.MULTILINE)
    errors = {int(index): message for index, message in found}
    assert (report["requests"], report["failed"]) == (len(outputs), len(errors))
    return Answers(outputs, errors, report)


def _written(requests, path):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in requests:
            writer.write(request.SerializeToString())
    return path
