"""Our SavedModel, and files for other runtimes, ours and timm's."""

import functools
import multiprocessing
import os
import pathlib
import tempfile

from benchmarks.contenders.keras_models import build_ours, randomized
from benchmarks.contenders.torch_models import build_timm
from benchmarks.runtimes import onnx_session, openvino_model


def open_saved_model(job):
    """A request with pixels to our SavedModel, as TensorFlow Serving answers it."""
    import tensorflow as tf

    from benchmarks.provenance import device

    with tempfile.TemporaryDirectory() as folder:
        _elsewhere(_write_saved_model, job, folder)
        os.environ["TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"] = "1"  # As in the export's compose.yaml.
        served = tf.saved_model.load(f"{folder}/1")
    answer = served.signatures["predict_pixels_float"]

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return tf.random.uniform((size, job.size, job.size, 3), maxval=255.0)

    def make_steps(batch_size, steps):
        for _ in range(steps):
            answer(images=batch(batch_size))["probabilities"].numpy()

    make_steps.model = served  # Its variables live as long as it does.
    return make_steps, device()


def _elsewhere(function, *arguments):
    """Calls a function in a process of its own, whose memory is not the contender's."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} ended with {process.exitcode}; its error is above.")


def _write_saved_model(job, folder):
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras_vit

    model = randomized(build_ours(job))
    keras_vit.export_saved_model(model, folder, precision=job.precision, tolerance=1e-4, min_agreement=0)


def open_runtime(job, runtime, of_timm):
    """A runtime's request, with our file for it or with timm's."""
    import numpy as np

    from benchmarks.provenance import processor

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / ("model.xml" if runtime == "openvino" and not of_timm else "model.onnx")
        _elsewhere(_write_timm if of_timm else _write_ours, job, path)
        answer = _RUNTIMES[runtime](str(path), job.precision)
    shape = (3, job.size, job.size) if of_timm else (job.size, job.size, 3)

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return np.random.default_rng(0).standard_normal((size, *shape), dtype="float32")

    def make_steps(batch_size, steps):
        for _ in range(steps):
            answer(batch(batch_size))

    return make_steps, processor()


def _write_ours(job, path):
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras_vit

    model = randomized(build_ours(job))
    keras_vit.export_model(model, path, "onnx" if path.suffix == ".onnx" else "openvino", tolerance=1e-4)


def _write_timm(job, path):
    import torch

    images = torch.zeros(2, 3, job.size, job.size)
    dynamic = {"images": {0: "batch"}, "logits": {0: "batch"}}
    names = {"input_names": ["images"], "output_names": ["logits"]}
    model = build_timm(job).eval()
    with torch.no_grad():  # As for ours, which `randomized` says.
        for weight in model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    # The older exporter: the newer one needs a package more, and folds what belongs to a fixed batch.
    torch.onnx.export(model, images, str(path), dynamo=False, dynamic_axes=dynamic, **names)


def _open_onnx(path, precision):
    session = onnx_session(path, len(os.sched_getaffinity(0)))
    return lambda images: session.run(None, {"images": images})


def _open_openvino(path, precision):
    hint = {"float32": "f32", "bfloat16": "bf16"}[precision]
    return openvino_model(path, len(os.sched_getaffinity(0)), INFERENCE_PRECISION_HINT=hint)


_RUNTIMES = {"onnx": _open_onnx, "openvino": _open_openvino}
