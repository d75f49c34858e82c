"""Building and running the C++ program `serve`, which runs a SavedModel as TensorFlow Serving does."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess

import filelock

SOURCES = sorted(path for path in pathlib.Path(__file__).parent.iterdir() if path.suffix in (".cc", ".h"))
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def build(folder):
    """Compiles the program against the headers and libraries of the installed TensorFlow.

    Args:
        folder: Where the program is kept. What is there already, for these sources and this TensorFlow, is used; of
            several processes one compiles.

    Returns:
        The path of the program.
    """
    import tensorflow as tf

    main = next(path for path in SOURCES if path.name == "serve.cc")
    libraries = tf.sysconfig.get_lib()
    command = [COMPILER, "-O1", *tf.sysconfig.get_compile_flags(), str(main), f"-L{libraries}"]
    # All of the library: that nothing here names its session factories does not mean that they are not needed.
    command += ["-Wl,--no-as-needed", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    command += [f"-Wl,-rpath,{libraries}", "-pthread"]
    content = "".join([tf.__version__, *command, *(path.read_text() for path in SOURCES)])
    program = pathlib.Path(folder) / f"serve-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    with filelock.FileLock(f"{program}.lock"):
        if not program.exists():
            unfinished = program.with_suffix(".unfinished")
            result = subprocess.run([*command, "-o", str(unfinished)], capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
            unfinished.rename(program)
    return program


def prediction_log(signature, **inputs):
    """A recorded request, as TensorFlow Serving's own class writes it."""
    import tensorflow as tf
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

    spec = model_pb2.ModelSpec(name="model", signature_name=signature)
    tensors = {name: tf.make_tensor_proto(value) for name, value in inputs.items()}
    request = predict_pb2.PredictRequest(model_spec=spec, inputs=tensors)
    return prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))


def replay(program, model, requests, folder):
    """Sends requests, one after the other.

    Args:
        program: Path of the program.
        model: Folder of the SavedModel.
        requests: List of `PredictionLog`, also encoded.
        folder: Where files may be written.

    Returns:
        For every request {name of output: array}, and what the program reports.
    """
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    responses = folder / "responses"
    report = _run(program, "replay", model, _written(requests, folder), responses)
    messages = [predict_pb2.PredictResponse.FromString(record.numpy()) for record in tf.data.TFRecordDataset(responses)]
    outputs = [{name: tf.make_ndarray(proto) for name, proto in m.outputs.items()} for m in messages]
    assert report["requests"] == len(outputs)
    return outputs, report


def load(program, model, requests, folder, threads, rounds, seconds):
    """Many clients send requests, `rounds` times for `seconds`; returns what the program reports."""
    return _run(program, "load", model, _written(requests, folder), threads, rounds, seconds)


def _written(requests, folder):
    import tensorflow as tf

    path = folder / "requests"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in requests:
            writer.write(request if isinstance(request, bytes) else request.SerializeToString())
    return path


def _run(program, *arguments):
    # With frozen weights, as in the compose.yaml of an export.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"}
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"serve {' '.join(map(str, arguments))}: exit status {result.returncode}\n{result.stderr}")
    return json.loads(result.stdout)
