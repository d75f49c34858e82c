"""Our SavedModel, and files for other runtimes, ours and timm's."""

import functools
import io
import os

import numpy as np

from benchmarks.contenders.keras_models import build_ours, randomized
from benchmarks.contenders.torch_models import build_timm
from benchmarks.runtimes import litert_model, onnx_session, openvino_model

_IMAGES = 32
"""Number of images that an int8 file is written with."""


def open_saved_model(job, path):
    """Requests with pixels to our SavedModel, as in TensorFlow Serving."""
    os.environ["TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"] = "1"  # As in the export's compose.yaml.
    import tensorflow as tf

    from benchmarks.provenance import device_of_tensorflow

    served = tf.saved_model.load(str(path / "1"))
    answer = served.signatures["predict_pixels_float"]

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return tf.random.uniform((size, job.size, job.size, 3), maxval=255.0)

    def make_steps(batch_size, steps):
        for _ in range(steps):
            answer(images=batch(batch_size))["probabilities"].numpy()

    make_steps.model = served  # Keeps the variables alive.
    return make_steps, device_of_tensorflow()


def write_saved_model(job, path):
    """Writes our SavedModel, as version 1 in a folder."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras_vit

    model = randomized(build_ours(job))
    keras_vit.export_saved_model(model, path, precision=job.precision, tolerance=1e-4, min_agreement=0)


def open_runtime(job, path, runtime, channels_first):
    """Requests to a runtime that has opened a file."""
    from benchmarks.provenance import processor

    answer = _RUNTIMES[runtime](str(path), job.precision)
    shape = (3, job.size, job.size) if channels_first else (job.size, job.size, 3)

    @functools.lru_cache(maxsize=1)
    def batch(size):
        return np.random.default_rng(0).standard_normal((size, *shape), dtype="float32")

    def make_steps(batch_size, steps):
        for _ in range(steps):
            answer(batch(batch_size))

    return make_steps, processor()


def write_ours(job, path):
    """Writes our ONNX, OpenVINO or LiteRT file."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras_vit

    model = randomized(build_ours(job))
    format = {".onnx": "onnx", ".xml": "openvino", ".tflite": "litert"}[path.suffix]
    if _is_int8(job):
        keras_vit.export_model(model, path, format, _images(job.size), precision="int8", min_agreement=0)
    else:
        keras_vit.export_model(model, path, format, tolerance=1e-4)


def write_timm(job, path):
    """Writes timm's ONNX file, which both runtimes read, or an OpenVINO file in int8 with our settings and images."""
    import torch

    images = torch.zeros(2, 3, job.size, job.size)
    dynamic = {"images": {0: "batch"}, "logits": {0: "batch"}}
    names = {"input_names": ["images"], "output_names": ["logits"]}
    model = build_timm(job).eval()
    with torch.no_grad():  # As in `randomized`, for the same reason.
        for weight in model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    onnx = path.with_suffix(".onnx")
    # The older exporter: the newer one needs another package and folds constants for a fixed batch size.
    torch.onnx.export(model, images, str(onnx), dynamo=False, dynamic_axes=dynamic, **names)
    if _is_int8(job):
        from keras_vit.export.calibration import split_images
        from keras_vit.export.int8.openvino import quantize

        calibrating, _ = split_images([_images(job.size)])
        quantize(str(onnx), str(path), [np.moveaxis(batch / 127.5 - 1, -1, 1) for batch in calibrating])


def _is_int8(job):
    return job.precision.startswith("int8")


def _images(size):
    """Random crops of the package's photographs, uint8 (N, H, W, C)."""
    from PIL import Image

    from keras_vit.export.parity import read_images

    rng, crops = np.random.default_rng(0), []
    photographs = [Image.open(io.BytesIO(contents)).convert("RGB") for contents in read_images(None)]
    for index in range(_IMAGES):
        photograph = photographs[index % len(photographs)]
        side = rng.uniform(0.3, 1) * min(photograph.size)
        left, top = (rng.uniform(0, length - side) for length in photograph.size)
        crops.append(photograph.resize((size, size), Image.Resampling.BICUBIC, (left, top, left + side, top + side)))
    return np.stack([np.asarray(crop) for crop in crops])


def _open_onnx(path, precision):
    session = onnx_session(path, len(os.sched_getaffinity(0)))
    return lambda images: session.run(None, {"images": images})


def _open_openvino(path, precision):
    hint = "bf16" if precision.endswith("bfloat16") else "f32"
    return openvino_model(path, len(os.sched_getaffinity(0)), INFERENCE_PRECISION_HINT=hint)


def _open_litert(path, precision):
    return litert_model(path, len(os.sched_getaffinity(0)))


_RUNTIMES = {"onnx": _open_onnx, "openvino": _open_openvino, "litert": _open_litert}
