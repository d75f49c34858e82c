"""The rows of the latency benchmark: one ViT in our SavedModel, KerasHub's, and files of other runtimes."""

import dataclasses
import functools
import importlib.util
import math
import os
import pickle
import tempfile
from collections.abc import Callable

import numpy as np

from benchmarks.contenders.keras_models import CLASSES
from benchmarks.runtimes import onnx_session, openvino_model

OURS = "ours"
TOLERANCE = 1e-4
"""Largest difference of a probability in float32."""
_SIZE = 224


@dataclasses.dataclass(frozen=True)
class Row:
    """A runtime that is measured.

    Args:
        title: Its name in the tables.
        file: Name of the file that it loads, a key of `_WRITERS`.
        takes: Form of its images, as written by `prepare`: `"pixels"`, `"normalised"` or `"files"`.
        packages: {name of a package: the extra that installs it}. The first one is the runtime.
        open: Function from (path of the file, number of threads) to a function from images to probabilities.
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
    # The exporter chooses the name of KerasHub's single output.
    output = "probabilities" if "probabilities" in serve.structured_outputs else next(iter(serve.structured_outputs))

    def answer(images):
        return serve(**{spec.name: tf.constant(images, spec.dtype)})[output].numpy()

    answer.model = model  # Keeps the variables alive.
    return answer


def _open_onnx(path, threads):
    session = onnx_session(path, threads)
    return lambda images: session.run(["probabilities"], {"images": images})[0]


def _open_openvino(path, threads, **properties):
    compiled = openvino_model(path, threads, **properties)
    return lambda images: compiled(images)["probabilities"]


_open_for_pixels = functools.partial(_open_saved_model, signature="predict_pixels_float")
_open_in_float32 = functools.partial(_open_openvino, INFERENCE_PRECISION_HINT="f32")
_TENSORFLOW = {"tensorflow": "tensorflow"}
_KERAS_HUB = _TENSORFLOW | {"keras_hub": "peers"}
_ONNX = dict.fromkeys(("onnxruntime", "onnx", "tf2onnx"), "runtimes")
_OPENVINO = dict.fromkeys(("openvino", "scipy"), "runtimes")
ROWS = {
    OURS: Row("our SavedModel", "saved_model/1", "pixels", _TENSORFLOW, _open_for_pixels),
    "ours-xla": Row("ours, `jit_compile=True`", "saved_model_xla/1", "pixels", _TENSORFLOW, _open_for_pixels),
    "ours-jpeg": Row("ours, from JPEG files", "saved_model/1", "files", _TENSORFLOW, _open_saved_model),
    "ours-default": Row(
        'ours, `signatures=["serving_default"]`', "saved_model_default/1", "files", _TENSORFLOW, _open_saved_model
    ),
    "keras-hub": Row("KerasHub's SavedModel", "keras_hub", "normalised", _KERAS_HUB, _open_saved_model),
    "onnx": Row("ONNX Runtime", "model.onnx", "pixels", _ONNX, _open_onnx),
    "openvino": Row("OpenVINO", "model.xml", "pixels", _OPENVINO, _open_in_float32),
    # bfloat16 has 8 bits of precision: probabilities near 0.5 change by some hundredths.
    "openvino-bf16": Row(
        "OpenVINO's default, bfloat16 if supported", "model.xml", "pixels", _OPENVINO, _open_openvino, 0.1
    ),
}


def missing(names):
    """{row: the extra to install}, for the rows with missing packages."""
    absent = {
        name: [extra for package, extra in ROWS[name].packages.items() if importlib.util.find_spec(package) is None]
        for name in names
    }
    return {name: extras[0] for name, extras in absent.items() if extras}


def build(variant, size=_SIZE, classes=CLASSES):
    """A classifier with a random head, so that its answers depend on the image. The weights of a new head are zero."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    # KerasHub only has the exact GELU.
    model = keras_vit.ViT(variant, input_shape=(size, size, 3), classes=classes, mlp="gelu_exact")
    head = model.layers[-1].kernel
    # The input of the head is normalised, so the logits have a standard deviation of 3.
    rng = np.random.default_rng(0)
    head.assign(rng.normal(0, 3 / math.sqrt(head.shape[0]), head.shape))
    # Biases and norms get different values, as in a trained model. Otherwise, equal constants could be merged.
    for weight in model.weights:
        if len(weight.shape) == 1:
            weight.assign(weight + rng.normal(0, 0.02, weight.shape))
    return model


def prepare(model, folder, names, batch_sizes):
    """Writes the files of the rows, the images in all forms, and the answers of the Keras model.

    Args:
        model: Model from `build`.
        folder: Folder to write to, a `pathlib.Path`.
        names: Keys of `ROWS`.
        batch_sizes: Numbers of images in a request.
    """
    import keras_vit
    from keras_vit.data.decoding import image_decoder
    from keras_vit.export.parity import read_images

    for file in {ROWS[name].file for name in names}:
        _WRITERS[file](model, folder / file, batch_sizes)
    photographs = read_images(None)
    files = [photographs[index % len(photographs)] for index in range(max(batch_sizes))]
    decode = image_decoder(model)
    pixels = np.stack([decode(file) for file in files]).astype("float32")
    normalised = keras_vit.preprocess_input(pixels, model)
    inputs = {"files": files, "pixels": pixels, "normalised": normalised}
    inputs["probabilities"] = model.predict(normalised, batch_size=4, verbose=0)
    for name, rows in inputs.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(rows))


def read_inputs(folder, name):
    """Reads one of the files of `prepare`: `"files"`, `"pixels"`, `"normalised"` or `"probabilities"`."""
    return pickle.loads((folder / f"{name}.pickle").read_bytes())


def _write_saved_model(model, path, batch_sizes, **options):
    import keras_vit

    keras_vit.export_saved_model(model, path.parent, batch_sizes=batch_sizes, **options)


def _write_keras_hub(model, path, batch_sizes):
    import keras_hub

    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        preset = os.path.join(folder, "preset")
        keras_vit.save_weights(model, preset, "keras_hub")
        classifier = keras_hub.models.ImageClassifier.from_preset(preset, activation="softmax")
    classifier.export(str(path), format="tf_saved_model", verbose=False)


def _write_runtime(model, path, batch_sizes, format):
    import keras_vit

    keras_vit.export_model(model, path, format)


_WRITERS = {
    "saved_model/1": _write_saved_model,
    "saved_model_default/1": functools.partial(_write_saved_model, signatures=["serving_default"]),
    "saved_model_xla/1": functools.partial(_write_saved_model, jit_compile=True),
    "keras_hub": _write_keras_hub,
    "model.onnx": functools.partial(_write_runtime, format="onnx"),
    "model.xml": functools.partial(_write_runtime, format="openvino"),
}
"""{name of a file or folder: function of a model, the path and the batch sizes that writes it}"""
