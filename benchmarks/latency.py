"""Measures how fast one ViT answers on CPUs: our SavedModel, KerasHub's, ONNX Runtime, OpenVINO and LiteRT.

Command: make bench-latency

The work: one ViT, B/16 unless told otherwise, with random weights and 1,000 classes, the same weights in all runtimes;
images of 224 x 224 pixels come as a NumPy array, probabilities go as one. All compute in float32 with the same number
of threads, but for the row that says so. KerasHub's export is what its users get: it neither normalises pixels nor
names classes, so it is given normalised ones. The row of encoded images is another job: JPEG files are decoded, too.

Each runtime has a process of its own. A cold load is in a fresh one, from the start of loading to the first answer to
one image, with the file in the system's cache; imports are counted by themselves. Then all processes get the same
requests in turns, so that what else the machine does meets all alike; the first request of each batch size is not
counted. Each answer is compared with the Keras model's; one that differs ends the benchmark with an error.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import math
import multiprocessing
import os
import pathlib
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

OURS = "ours"
TOLERANCE = 1e-4
"""Of probabilities, in float32."""
MIN_ROUNDS = 3
_SIZE = 224
_CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Row:
    """A runtime that is measured.

    Args:
        title: Its name in the tables.
        file: What it loads, a name of `_WRITERS`.
        takes: Its images, a key of the inputs that `prepare` writes: `"pixels"`, `"normalised"` or `"files"`.
        packages: {name of a package to import: what to install it with}, the one that runs it first.
        open: Function (path of the file, number of threads) to the function from images to probabilities.
        tolerance: Largest difference of a probability from the Keras model's.
    """

    title: str
    file: str
    takes: str
    packages: dict
    open: Callable
    tolerance: float = TOLERANCE


def _open_saved_model(path, threads, signature="serving_default"):
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    model = tf.saved_model.load(path)
    serve = model.signatures[signature]
    [spec] = serve.structured_input_signature[1].values()

    def answer(images):
        outputs = serve(**{spec.name: tf.constant(images, spec.dtype)})
        return (outputs["probabilities"] if len(outputs) > 1 else next(iter(outputs.values()))).numpy()

    answer.model = model  # Its variables live as long as it does.
    return answer


def _open_pixels(path, threads):
    return _open_saved_model(path, threads, "predict_pixels_float")


def _open_onnx(path, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["probabilities"], {"images": images})[0]


def _open_openvino(path, threads):
    return _compile_openvino(path, {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})


def _open_openvino_default(path, threads):
    return _compile_openvino(path, {"INFERENCE_NUM_THREADS": threads})


def _compile_openvino(path, properties):
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", properties)
    return lambda images: compiled(images)["probabilities"]


def _open_litert(path, threads):
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(path, num_threads=threads).get_signature_runner()
    return lambda images: run(images=images)["probabilities"]


_RUNTIMES = "pip install '.[runtimes]'"
_TENSORFLOW = {"tensorflow": "pip install '.[tensorflow]'"}
_ONNX = {name: _RUNTIMES for name in ("onnxruntime", "onnx", "tf2onnx")}
_OPENVINO = {name: _RUNTIMES for name in ("openvino", "scipy")}
ROWS = {
    OURS: Row("our SavedModel", "saved_model", "pixels", _TENSORFLOW, _open_pixels),
    "ours-xla": Row("the same, `jit_compile=True`", "saved_model_xla", "pixels", _TENSORFLOW, _open_pixels),
    "ours-jpeg": Row("ours, from JPEG files", "saved_model", "files", _TENSORFLOW, _open_saved_model),
    "keras-hub": Row(
        "KerasHub's SavedModel",
        "keras_hub",
        "normalised",
        _TENSORFLOW | {"keras_hub": "pip install '.[peers]'"},
        _open_saved_model,
    ),
    "onnx": Row("ONNX Runtime", "model.onnx", "pixels", _ONNX, _open_onnx),
    "openvino": Row("OpenVINO", "model.xml", "pixels", _OPENVINO, _open_openvino),
    # bfloat16 has 8 bits: probabilities in the middle of their range move by some hundredths.
    "openvino-default": Row(
        "OpenVINO, its default: bfloat16 where the CPU can", "model.xml", "pixels", _OPENVINO, _open_openvino_default, 0.1
    ),
    "litert": Row("LiteRT", "model.tflite", "pixels", {"ai_edge_litert": _RUNTIMES}, _open_litert),
}


def missing(names):
    """{row: what to install it with}, of rows that cannot run here."""
    found = {}
    for name in names:
        commands = [
            command for package, command in ROWS[name].packages.items() if importlib.util.find_spec(package) is None
        ]
        if commands:
            found[name] = commands[0]
    return found


def build(variant, size=_SIZE, classes=_CLASSES):
    """A classifier whose answers depend on the image: a fresh one's head is zero."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    # KerasHub has the exact GELU only.
    model = keras_vit.ViT(variant, input_shape=(size, size, 3), classes=classes, mlp="gelu_exact")
    head = model.layers[-1].kernel
    # Logits with a standard deviation of 3, as what is read is normalised.
    head.assign(np.random.default_rng(0).normal(0, 3 / math.sqrt(head.shape[0]), head.shape))
    return model


def prepare(model, folder, names, most):
    """Writes the files that rows load, and `inputs.pickle`: the images in all forms and the Keras model's answers.

    Args:
        model: Of `build`.
        folder: To write to, a `pathlib.Path`.
        names: Keys of `ROWS`.
        most: Number of images.
    """
    import keras_vit
    from keras_vit.decoding import image_decoder
    from keras_vit.export.parity import read_images

    for file in {ROWS[name].file for name in names}:
        _WRITERS[file](model, folder / file)
    photographs = read_images(None)
    files = [photographs[index % len(photographs)] for index in range(most)]
    decode = image_decoder(model)
    pixels = np.stack([decode(file) for file in files]).astype("float32")
    normalised = keras_vit.preprocess_input(pixels, model)
    inputs = {"files": files, "pixels": pixels, "normalised": normalised, "probabilities": model.predict(normalised, 4, 0)}
    (folder / "inputs.pickle").write_bytes(pickle.dumps(inputs))


def _write_saved_model(model, path, **options):
    import keras_vit

    keras_vit.export_saved_model(model, path, **options).rename(path / "served")


def _write_keras_hub(model, path):
    import keras_hub

    import keras_vit

    with tempfile.TemporaryDirectory() as preset:
        keras_vit.save_weights(model, os.path.join(preset, "preset"), "keras_hub")
        classifier = keras_hub.models.ImageClassifier.from_preset(os.path.join(preset, "preset"), activation="softmax")
    classifier.export(str(path), format="tf_saved_model", verbose=False)
