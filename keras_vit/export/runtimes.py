"""Files for other runtimes: ONNX Runtime, LiteRT and OpenVINO.

Keras's own exporters write them. The runtimes are imported inside the functions only. N images, H W C image.
"""

import dataclasses
import importlib.util
import os
import pathlib
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.architectures import read_architecture
from keras_vit.atomic_files import appears_complete
from keras_vit.checks import check_flag
from keras_vit.decoding import decode_upright, resize
from keras_vit.export.elsewhere import with_tensorflow
from keras_vit.export.parity import Parity, check_limits, compare, computes_in_float32, read_images, verified
from keras_vit.export.signatures import check_output, probabilities
from keras_vit.graph import is_quantized
from keras_vit.layers.ops.textbook import textbook_operations
from keras_vit.preprocessing import preprocess_input, preprocessing_layer

_BATCH_SIZES = (1, 3)
_MESSAGE_BYTES = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class RuntimeFile:
    """What `export_model` wrote, and how far its answers are from the model's.

    Args:
        path: The file, a `pathlib.Path`.
        num_bytes: Its size, with that of the file of weights beside it, if there is one.
        images: Number of images compared.
        batch_sizes: How many of them the runtime was given at once.
        max_difference: The largest difference of a probability. (Where the model answers alike for every image, as one
            with a fresh classifier does, of a copy with a random classifier.)
        top_1_agreement: Part of the images, or of their pixels, of which the most probable class is the same, in
            [0, 1].
    """

    path: pathlib.Path
    num_bytes: int
    images: int
    batch_sizes: tuple
    max_difference: float
    top_1_agreement: float


def export_model(
    model, path, format, images=None, precision="float32", tolerance=1e-5, min_agreement=0.95, overwrite=False
):
    """Writes a model as a file for a runtime other than TensorFlow, through `model.export`.

    The file has one function, from `images`, (N, H, W, C) float32 in [0, 255], to `probabilities`, (N, classes)
    float32, of a segmentation model (N, H, W, classes), for any N. Images come in the model's input size; a model that
    takes any size does so here too. Normalising happens inside, as the model's `preprocessing` layer says, and a model
    that ends with logits gets a softmax. These formats cannot decode images: that, labels and the other signatures are
    what `keras_vit.export_saved_model` is for.

    Before it appears under its name, the file is loaded by its runtime and compared with the model, image by image and
    in batches of three: to `tolerance`, or where the weights are stored in less than float32 by the most probable
    class. If it is not good enough, nothing is left behind.

    Args:
        model: A classifier or segmentation model of this package, also nested in another model, that computes in
            float32. Where Keras does not run on TensorFlow, the file is written by another process.
        path: The file to write.
        format: `"onnx"`: ONNX Runtime; a file `.onnx`, opset 18. `"litert"`: LiteRT, formerly TensorFlow Lite; a file
            `.tflite`. `"openvino"`: a file `.xml`, and beside it the weights in a file `.bin`. OpenVINO computes in
            bfloat16 on CPUs that can, unless the model is compiled with `{"INFERENCE_PRECISION_HINT": "f32"}`, as it is
            for the comparison; probabilities of ViT-Ti/16 changed by up to 0.03.
        images: (N, H, W, C), pixels in [0, 255], to compare on; or a list of such arrays of several sizes. By default
            four photographs, for a model of variable size in two sizes; give some hundred of your own to judge smaller
            weights.
        precision: Of the stored weights: `"float32"`; for LiteRT and OpenVINO also `"float16"`, half the size; for
            LiteRT also `"int8"`, a quarter of the size, with activations brought to 8 bits as they come.
        tolerance: The largest difference of a float32 probability.
        min_agreement: The part of the images, in [0, 1], for which a model with smaller weights must name the class
            that `model` names.
        overwrite: Whether existing files may be replaced.

    Returns:
        A `RuntimeFile`: the path, the size, and how exactly the answers agree.

    Raises:
        FileExistsError: If a file exists and `overwrite` is `False`.
        ImportError: If the packages of the format are not installed.
        RuntimeError: If TensorFlow is in another process, and that fails.
        ValueError: If the format cannot hold the model, an argument is impossible, the runtime cannot run what was
            written, or it answers otherwise than the model.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViTTi16(weights="pets.weights.h5", classes=3)  # doctest: +SKIP
    >>> keras_vit.export_model(model, "pets.onnx", "onnx").max_difference  # doctest: +SKIP
    5.9e-08
    """
    path = pathlib.Path(path)
    _check_arguments(path, format, precision)
    check_flag("overwrite", overwrite)
    check_limits(tolerance, min_agreement)
    _check_model(model, format)
    batches = None if images is None else _checked_images(model, images)
    sizes = _photograph_sizes(model) if images is None else []
    targets = [path.with_suffix(suffix) for suffix in _FORMATS[format].suffixes]
    for target in targets:
        if target.exists() and not overwrite:
            raise FileExistsError(f"{target} exists. Give another path, or overwrite=True to replace it.")

    def write(model, folder):
        file, photographs = folder / path.name, folder / "photographs.npz"
        arguments = {"format": format, "precision": precision, "photographs": str(photographs), "sizes": sizes}
        with_tensorflow(write_file, model, file=str(file), **arguments)
        with np.load(photographs) as arrays:
            return _compare(model, format, file, list(arrays.values()) if batches is None else batches)

    path.parent.mkdir(parents=True, exist_ok=True)
    with appears_complete(*targets) as folder:
        parity = verified(write, model, folder, precision == "float32", tolerance, min_agreement)
    num_bytes = sum(target.stat().st_size for target in targets)
    difference = parity.max_difference["serving_default"]
    return RuntimeFile(path, num_bytes, parity.images, _BATCH_SIZES, difference, parity.top_1_agreement)


class _FromPixels(keras.Model):
    """{"probabilities": (N, classes) or (N, H, W, classes)} of a model, from pixels in [0, 255]."""

    # Not a functional model: constants in its operations would be further inputs of an ONNX file.

    def __init__(self, model):
        super().__init__(name="from_pixels")
        self.model = model
        self.built = True

    def call(self, images):
        return {"probabilities": probabilities(self.model, preprocess_input(images, self.model))}


def write_file(model, file, format, precision, photographs, sizes):
    """Writes a file, and reads the photographs to compare on. Keras runs on TensorFlow here.

    Args:
        model: A classifier or segmentation model.
        file: Path of the file.
        format: A key of `_FORMATS`.
        precision: One of the format's.
        photographs: Path of the `.npz` file that gets the photographs, an array (N, H, W, C) uint8 for each of `sizes`.
        sizes: List of [height, width].
    """
    _FORMATS[format].write(_FromPixels(model), file, precision)
    *_, channels = model.input_shape
    images = [decode_upright(contents, channels) for contents in read_images(None)] if sizes else []
    np.savez(photographs, *(np.stack([resize(image, size, "bicubic") for image in images]) for size in sizes))


def _write_onnx(model, file, precision):
    # Opset 18: before it, tf2onnx makes means of the last axis pooling, which ONNX Runtime does not take for a part of
    # a norm.
    _export(model, file, "onnx", opset_version=18)
    _divide_in_gelus(file)


def _divide_in_gelus(file):
    """Writes `erf(x / sqrt(2))` in the place of `erf(x * sqrt(1/2))`."""
    # ONNX Runtime knows an exact GELU by the quotient only, and TensorFlow makes products of quotients by constants.
    import onnx

    model = onnx.load(file)
    makers = {output: node for node in model.graph.node for output in node.output}
    numbers = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer if not tensor.dims}
    divisor = onnx.numpy_helper.from_array(np.float32(np.sqrt(2.0)), "square_root_of_2")
    changed = False
    for erf in [node for node in model.graph.node if node.op_type == "Erf"]:
        maker = makers.get(erf.input[0])
        factors = [] if maker is None or maker.op_type != "Mul" else list(maker.input)
        halves = [name for name in factors if name in numbers and abs(numbers[name] - np.sqrt(0.5)) < 1e-6]
        if len(halves) == 1:
            (values,) = [name for name in factors if name not in halves]
            maker.op_type, maker.input[:], changed = "Div", [values, divisor.name], True
    if changed:
        model.graph.initializer.append(divisor)
        onnx.save(model, file)


def _export(model, file, format, **options):
    """What Keras's exporter writes of a model in the operations that the runtimes look for."""
    import tensorflow as tf

    with textbook_operations(tf.matmul):
        # A model that was never called must be told what it takes.
        model.export(file, format=format, verbose=False, input_signature=[_images_of(model)], **options)


def _write_litert(model, file, precision):
    import tensorflow as tf

    # Dynamic range quantisation: kernels in 8 bits, or of the type that is asked for.
    options = {} if precision == "float32" else {"optimizations": [tf.lite.Optimize.DEFAULT]}
    if precision == "float16":
        options["target_spec"] = {"supported_types": [tf.float16]}
    model.export(file, format="litert", verbose=False, input_signature=[_images_of(model)], **options)


def _write_openvino(model, file, precision):
    import openvino

    exported = str(pathlib.Path(file).with_suffix(".exported.xml"))
    _export(model, exported, "openvino")
    openvino.save_model(openvino.Core().read_model(exported), file, compress_to_fp16=precision == "float16")


def _images_of(model):
    return keras.InputSpec(shape=model.model.input_shape, dtype="float32", name="images")


def _open_onnx(file):
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["probabilities"], {"images": images})[0]


def _open_litert(file):
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(file).get_signature_runner()
    return lambda images: run(images=images)["probabilities"]


def _open_openvino(file):
    import openvino

    compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: compiled(images)["probabilities"]


@dataclasses.dataclass(frozen=True)
class _Format:
    """What is particular to a format.

    Args:
        suffixes: Of its files; of the one that the path names last.
        precisions: Of the weights, those that it is written in.
        packages: That write and run it.
        is_one_message: Whether the file is one message of its serialiser, which holds `_MESSAGE_BYTES` at most.
        write: Function (model, path of the file, precision).
        open: Function from the path of a file to what runs it: a function from images to probabilities.
    """

    suffixes: tuple
    precisions: tuple
    packages: tuple
    is_one_message: bool
    write: Callable
    open: Callable


_FORMATS = {
    "onnx": _Format((".onnx",), ("float32",), ("onnx", "onnxruntime", "tf2onnx"), True, _write_onnx, _open_onnx),
    "litert": _Format(
        (".tflite",), ("float32", "float16", "int8"), ("ai_edge_litert",), True, _write_litert, _open_litert
    ),
    # Keras's exporter imports SciPy.
    "openvino": _Format(
        (".bin", ".xml"), ("float32", "float16"), ("openvino", "scipy"), False, _write_openvino, _open_openvino
    ),
}


def _compare(model, format, file, batches):
    """The `Parity` of a file's answers to some arrays of images, given in parts of each of `_BATCH_SIZES`."""
    found = []
    for images in batches:
        # A part of three needs three.
        images = np.resize(images, (max(len(images), *_BATCH_SIZES), *images.shape[1:]))
        for answers in _answers(format, file, images):
            found.append(compare(model, images, {"serving_default": answers}))
    counts = [parity.images for parity in found]
    differences = [parity.max_difference["serving_default"] for parity in found]
    agreement = np.average([parity.top_1_agreement for parity in found], weights=counts)
    # `np.max` and not `max`: it passes on what is not a number.
    difference = {"serving_default": float(np.max(differences))}
    effect = max(parity.effect for parity in found)
    return Parity(sum(counts) // len(_BATCH_SIZES), difference, float(agreement), effect)


def _answers(format, file, images):
    """What a runtime answers, once for each of `_BATCH_SIZES`."""
    try:
        run = _FORMATS[format].open(str(file))
        for batch_size in _BATCH_SIZES:
            starts = range(0, len(images), batch_size)
            parts = [images[start : start + batch_size].astype("float32") for start in starts]
            yield np.concatenate([run(part) for part in parts])
    except Exception as error:  # Each runtime has its own.
        raise ValueError(
            f"The runtime of the format {format!r} cannot run what was written from this model: {error} Nothing was "
            f"exported."
        ) from error


def _check_arguments(path, format, precision):
    if format not in _FORMATS:
        hint = " Did you mean 'litert'?" if format == "tflite" else ""
        raise ValueError(
            f"format must be one of {', '.join(map(repr, _FORMATS))}. Received: {format!r}.{hint} For TensorFlow and "
            f"TensorFlow Serving use keras_vit.export_saved_model."
        )
    *_, suffix = _FORMATS[format].suffixes
    if path.suffix != suffix:
        raise ValueError(f"The format {format!r} is a file that ends in {suffix}. Received: {os.fspath(path)!r}")
    precisions = _FORMATS[format].precisions
    if precision not in precisions:
        raise ValueError(
            f"precision of the format {format!r} must be one of {', '.join(map(repr, precisions))}. Received: "
            f"{precision!r}"
        )
    missing = [package for package in _FORMATS[format].packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ImportError(
            f"The format {format!r} needs {', '.join(missing)}. Install with: pip install "
            f"'keras-vit-applications[runtimes]'"
        )


def _check_model(model, format):
    check_output(model)
    if is_quantized(model):
        raise ValueError(
            f"{model.name!r} was quantized by Keras, which the format {format!r} cannot express. Export it before "
            f"model.quantize, with precision=..., or use keras_vit.export_saved_model."
        )
    if not computes_in_float32(model):
        raise ValueError(
            f"The format {format!r} is written from models that compute in float32; {model.name!r} has layers of "
            f"another dtype policy. Build it with the policy 'float32' and copy the weights: "
            f"new_model.set_weights(model.get_weights())."
        )
    num_bytes = 4 * model.count_params()
    if _FORMATS[format].is_one_message and num_bytes > _MESSAGE_BYTES:
        raise ValueError(
            f"A file of the format {format!r} holds less than 2 GiB, and the float32 weights of {model.name!r} are "
            f"{num_bytes / 2**30:.1f} GiB. Use format='openvino', or keras_vit.export_saved_model."
        )


def _checked_images(model, images):
    """Images to compare on, as a list of arrays."""
    arrays = [np.asarray(array) for array in (images if isinstance(images, (list, tuple)) else [images])]
    shape = model.input_shape
    if not arrays or not all(_are_images(array, shape) for array in arrays):
        raise ValueError(
            f"images must be an array of shape {shape}, or a list of such arrays, with pixels in [0, 255]. Received: "
            f"{', '.join(f'{array.dtype} {array.shape}' for array in arrays) or 'an empty list'}"
        )
    return arrays


def _are_images(array, shape):
    is_shape = array.ndim == len(shape) and all(
        known in (None, size) for size, known in zip(array.shape, shape, strict=True)
    )
    return is_shape and array.size > 0 and array.dtype.kind in "uif"


def _photograph_sizes(model):
    """[height, width] of what is compared on by default: two, one of them not square, if the model takes any."""
    _, height, width, channels = model.input_shape
    architecture = preprocessing_layer(model).architecture
    if channels not in (1, 3) or (None in (height, width) and architecture is None):
        raise ValueError(
            f"There are no photographs that fit images of shape {model.input_shape[1:]} here. Give images of your own "
            f"to compare on: images=..."
        )
    if None not in (height, width):
        return [[height, width]]
    stride = read_architecture(architecture).total_stride
    return [[height or rows * stride[0], width or columns * stride[1]] for rows, columns in ((14, 14), (10, 13))]
