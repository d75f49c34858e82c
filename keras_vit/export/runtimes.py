"""Files for other runtimes: ONNX Runtime, LiteRT and OpenVINO.

Keras's own exporters write them. The runtimes are imported only inside functions. Shapes: N images, H W C image.
"""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit.architectures import read_architecture
from keras_vit.atomic_files import replace_atomically
from keras_vit.checks import check_choice, check_flag
from keras_vit.export import calibration
from keras_vit.export.answers import answer_of
from keras_vit.export.cards import write_card
from keras_vit.export.elsewhere import with_tensorflow
from keras_vit.export.formats.exporting import FromPixels
from keras_vit.export.parity import check_limits, compare, computes_in_float32, joined, read_images, verified
from keras_vit.export.runtime_formats import FORMATS
from keras_vit.export.server_files import check_version_folder, write_server_files
from keras_vit.export.signatures import check_output
from keras_vit.graph import fits, is_quantized
from keras_vit.preprocessing import preprocessing_layer
from keras_vit.weights.model_cards import CARD, Evaluation, check_card, remove_card

_BATCH_SIZES = (1, 3)
_MESSAGE_BYTES = 2**31 - 1
_OUTPUT_BYTES = 2**28
"""Size of the outputs that are compared at a time, if they have a value for each pixel."""


@dataclasses.dataclass(frozen=True)
class RuntimeFile:
    """Result of `export_model`: the file, and how its outputs differ from the model's.

    Args:
        path: Path of the file, a `pathlib.Path`.
        num_bytes: Size of the file, including a separate file of weights if there is one.
        images: Number of images that were compared. Images that calibrated the file are not compared.
        batch_sizes: Batch sizes of the comparison.
        max_difference: Largest difference of a probability. Differences of other outputs are divided by the largest
            value. If the model's output does not depend on the image, for example because its classifier is new, a copy
            of the model with a random classifier was compared instead.
        top_1_agreement: Share of the images, or of their pixels, for which the file and the model have the same most
            probable class, in [0, 1]. Of values, depths and normals, it is the share that differs by at most a
            twentieth of the range. Of embeddings, it is the share whose cosine is at least 0.99.
        predicted_classes: Number of different classes that the model predicts for these images, or for their pixels. If
            it is small, the agreement shows little.
        relative_speed: For an int8 file, the time of the float32 file divided by the time of this file, for one image
            on this machine. It is the median of alternate measurements. Otherwise `None`.
    """

    path: pathlib.Path
    num_bytes: int
    images: int
    batch_sizes: tuple
    max_difference: float
    top_1_agreement: float
    predicted_classes: int
    relative_speed: float | None = None


def export_model(
    model: keras.Model,
    path: str | os.PathLike,
    format: str,
    images: ArrayLike | None = None,
    precision: str = "float32",
    tolerance: float = 1e-5,
    min_agreement: float | None = None,
    overwrite: bool = False,
    card: bool | Evaluation = False,
) -> "RuntimeFile":
    """Writes a model as a file for a runtime other than TensorFlow, through `model.export`.

    The file has one function. It takes `images`, (N, H, W, C) float32 in [0, 255], for any N. It returns float32:

    * `probabilities`, (N, classes), or (N, H, W, classes) for a map of classes
    * `values`, (N, values), or `embedding`, (N, D), of a model without a classifier
    * `depth`, (N, H, W), or `normals`, (N, H, W, 3). `keras_vit.export_saved_model` describes the unit of the depth.
    * `masks`, (N, h, w, queries), and `objects`, (N, queries, classes + 1): logits, as `keras_vit.Segmenter` returns
      them. `keras_vit.heads.segments` computes objects, segments and classes of pixels from them.

    The images must have the model's input size. If the model accepts images of any size, the file does too. The file
    normalises the images as the model's `preprocessing` layer defines. A softmax is added to a model that ends with
    logits. For image decoding, labels and other signatures, use `keras_vit.export_saved_model`.

    Before the file is moved to `path`, the runtime loads it. Its outputs are compared with the model's outputs, for
    batches of one image and of three images. Float32 files pass if no probability of an image differs by more than
    `tolerance`, no probability of a pixel by more than `10 * tolerance`, and no other output by more than
    `10 * tolerance` of the largest. Files of lower precision pass if the most probable classes agree for at least
    `min_agreement` of the images. If the comparison fails, no file is written.

    With `precision="int8"`, products of matrices and convolutions are computed with 8-bit integers (post-training
    quantization). The ranges of the integers are chosen by `images`, so pass a few hundred images like those that will
    be served. Three quarters of them calibrate the file. Every fourth image is kept back, and the comparison uses only
    these. A warning is logged if these images show little about the file: if they are few, if they have little
    contrast, or if the model predicts few classes for them. The file's speed is compared with that of the float32 file.
    If it is slower, a warning is logged.
    docs/serving/eight_bits.md describes the settings of each format.

    If the format is `"openvino"` and the name of the file's folder is a version number, as in `models/pets/1/pets.xml`,
    configuration files of OpenVINO Model Server are written next to this folder (see docs/serving/eight_bits.md).

    Args:
        model: A model of this package, as for `keras_vit.export_saved_model`. It may be nested in another model.
            It must compute in float32. If Keras does not run on TensorFlow, another process writes the file.
        path: Path of the file.
        format: `"onnx"`: ONNX Runtime, a `.onnx` file, opset 18. `"litert"`: LiteRT, formerly TensorFlow Lite, a
            `.tflite` file. `"openvino"`: OpenVINO, an `.xml` file and a `.bin` file with the weights. OpenVINO computes
            in bfloat16 on CPUs that support it, which changed probabilities of ViT-Ti/16 by up to 0.03. To avoid this,
            compile the model with `{"INFERENCE_PRECISION_HINT": "f32"}`, as the comparison does.
        images: Images for the comparison, (N, H, W, C), pixels in [0, 255], or a list of such arrays of different
            sizes. By default, four photographs of this package are used, in two sizes if the model's input size is
            variable. With `precision="int8"`, images are required.
        precision: `"float32"`; `"float16"`, for LiteRT and OpenVINO: half the size, with weights stored in float16; or
            `"int8"`: a quarter to a half of the size, with computations in 8 bits.
        tolerance: Maximum difference of the probability of an image, for float32 weights.
        min_agreement: Minimum share of the images, in [0, 1], for which a file of lower precision must predict the same
            class as `model`. By default 0.95, or 0.9 for int8.
        overwrite: Whether existing files may be replaced.
        card: Whether a model card, `README.md`, is written in the folder of the file. It describes the architecture,
            the source and licence of the weights, the preprocessing and the loading, in the format of the Hugging Face
            Hub. To include measured metrics, pass a `keras_vit.Evaluation`. A `README.md` that keras_vit did not write
            is not replaced. If `card` is `False` and an existing file is replaced, the card of this file is
            removed, unless the card was edited.

    Returns:
        A `RuntimeFile`: the path, the size, and the differences between the outputs.

    Raises:
        FileExistsError: If a file exists and `overwrite` is `False`, or if the card would replace another `README.md`.
        ImportError: If packages that the format or the precision needs are not installed.
        OSError: If a file cannot be written.
        RuntimeError: If another process writes the file, and that process fails.
        ValueError: If the format cannot represent the model, if an argument is invalid, if the runtime cannot run the
            file, or if the file's outputs differ from the model's.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViTTi16(weights="pets.weights.h5", classes=3)  # doctest: +SKIP
    >>> keras_vit.export_model(model, "pets.onnx", "onnx").max_difference  # doctest: +SKIP
    5.9e-08
    """
    path = pathlib.Path(path)
    _check_arguments(path, format, precision)
    check_flag("overwrite", overwrite)
    if min_agreement is None:
        min_agreement = 0.9 if precision == "int8" else 0.95
    check_limits(tolerance, min_agreement)
    check_card(card, path.with_name(CARD), path.name)
    _check_model(model, format)
    check_version_folder(path)
    calibrating, batches = _images_for(model, images, precision)
    sizes = _photograph_sizes(model) if images is None else []
    targets = [path.with_suffix(suffix) for suffix in FORMATS[format].suffixes]
    if not overwrite and (existing := [target for target in targets if target.exists()]):
        raise FileExistsError(f"{existing[0]} exists. Give another path, or overwrite=True to replace it.")

    def write(model, folder):
        file, photographs = folder / path.name, folder / "photographs.npz"
        float_file = _float_file(folder, path.name) if precision == "int8" else file
        float_file.parent.mkdir(exist_ok=True)
        stored = "float32" if precision == "int8" else precision
        arguments = {"format": format, "precision": stored, "photographs": str(photographs), "sizes": sizes}
        with_tensorflow(write_file, model, file=str(float_file), **arguments)
        if precision == "int8":
            FORMATS[format].quantize(str(float_file), str(file), calibrating)
        with np.load(photographs) as arrays:
            return _compare(model, format, file, list(arrays.values()) if batches is None else batches)

    cards = [path.with_name(CARD)] if card else []
    with _new_files([*cards, *targets]) as folder:
        parity = verified(write, model, folder, precision == "float32", tolerance, min_agreement)
        speed = _judged_int8(model, format, folder, path.name, batches, parity) if precision == "int8" else None
        write_card(folder, model, format, path.name, card, precision)
    if not card:
        remove_card(path.with_name(CARD), path.name)
    write_server_files(path)
    num_bytes = sum(target.stat().st_size for target in targets)
    found = parity.max_difference["serving_default"], parity.top_1_agreement, len(parity.predicted_classes)
    return RuntimeFile(path, num_bytes, parity.images, _BATCH_SIZES, *found, speed)


def write_file(model, file, format, precision, photographs, sizes):
    """Writes a file, and saves the photographs for the comparison. Keras must run on TensorFlow.

    Args:
        model: A model that `check_output` accepts.
        file: Path of the file.
        format: A key of `FORMATS`.
        precision: `"float32"` or, for some formats, `"float16"`.
        photographs: Path of the `.npz` file for the photographs. It gets one uint8 array (N, H, W, C) for each size.
        sizes: List of [height, width].
    """
    from keras_vit.data.decoding import decode_upright, resize_image

    FORMATS[format].module.write(FromPixels(model), file, precision)
    *_, channels = model.input_shape
    images = [decode_upright(contents, channels) for contents in read_images(None)] if sizes else []
    np.savez(photographs, *(np.stack([resize_image(image, size, "bicubic") for image in images]) for size in sizes))


def _compare(model, format, file, batches):
    """Compares a file with its model on arrays of images, once for each of `_BATCH_SIZES`. Returns a `Parity`."""
    chunks = [chunk for batch in batches for chunk in _chunks(model, batch)]
    answers = _answers(format, file, chunks)
    parity = joined([compare(model, images, {"serving_default": outputs}) for images, outputs in answers])
    return dataclasses.replace(parity, images=parity.images // len(_BATCH_SIZES))


def _chunks(model, images):
    """Splits images into arrays that are compared at a time, so that the outputs fit in memory."""
    _, height, width, _ = images.shape
    num_channels = max(shape[-1] for shape in [output.shape for output in model.outputs])
    size = max(*_BATCH_SIZES, _OUTPUT_BYTES // (4 * height * width * num_channels))
    size = size if answer_of(model).in_original else len(images)
    return [images[start : start + size] for start in range(0, len(images), size)]


def _judged_int8(model, format, folder, name, batches, parity):
    """Returns the speed of an int8 file relative to its float32 file.

    Logs a warning if the file is slower, or if its comparison with the model shows little.
    """
    if parity.predicted_classes:
        num_classes = answer_of(model).num_names(model)
        calibration.warn_of_few_classes(len(parity.predicted_classes), parity.images, num_classes)
    open_file = FORMATS[format].module.open_file
    float_run, run = open_file(str(_float_file(folder, name))), open_file(str(folder / name))
    speed = calibration.relative_speed(float_run, run, batches[0][:1].astype("float32"))
    calibration.warn_if_slower(name, speed, format)
    return speed


def _answers(format, file, chunks):
    """Yields (images, outputs of a runtime) for each array of images, once for each of `_BATCH_SIZES`."""
    try:
        run = FORMATS[format].module.open_file(str(file))
        for images in chunks:
            # A batch of three needs three images. If there are fewer, they are repeated.
            repeated = np.resize(images, (max(len(images), *_BATCH_SIZES), *images.shape[1:]))
            for batch_size in _BATCH_SIZES:
                starts = range(0, len(repeated), batch_size)
                outputs = [run(repeated[start : start + batch_size].astype("float32")) for start in starts]
                yield (
                    images,
                    [
                        np.concatenate([output[name] for output in outputs])[: len(images)]
                        for name in sorted(outputs[0])
                    ],
                )
    except Exception as error:  # Each runtime has its own exceptions.
        raise ValueError(
            f"The runtime of the format {format!r} cannot run the file of this model: {error} Nothing was exported."
        ) from error


def _float_file(folder, name):
    """Path of the float32 file from which an int8 file is made."""
    return folder / f"float32-{name}" / name


@contextlib.contextmanager
def _new_files(targets):
    """Provides a folder for new files, as `replace_atomically` does. A new folder appears only with its files."""
    parent = targets[0].parent
    if parent.exists():
        with replace_atomically(*targets) as folder:
            yield folder
        return
    new = [each for each in parent.parents if not each.exists()]
    parent.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A server would try to load a version's folder that is still empty.
        with replace_atomically(parent, overwrite=False) as folder:
            yield folder
            complete = folder / parent.name
            complete.mkdir()
            for target in targets:
                (folder / target.name).rename(complete / target.name)
    except BaseException:
        with contextlib.suppress(OSError):  # The folders remain if they are not empty.
            for each in new:
                each.rmdir()
        raise


def _check_arguments(path, format, precision):
    if format not in FORMATS:
        hint = " Did you mean 'litert'?" if format == "tflite" else ""
        raise ValueError(
            f"format must be one of {', '.join(map(repr, FORMATS))}. Received: {format!r}.{hint} For TensorFlow and "
            f"TensorFlow Serving use keras_vit.export_saved_model."
        )
    *_, suffix = FORMATS[format].suffixes
    if path.suffix != suffix:
        raise ValueError(f"A file of the format {format!r} must end in {suffix}. Received: {os.fspath(path)!r}")
    check_choice(f"precision of the format {format!r}", precision, FORMATS[format].precisions)
    packages = FORMATS[format].packages + (FORMATS[format].int8_packages if precision == "int8" else ())
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        extra, condition = ("int8", " with precision='int8'") if precision == "int8" else ("runtimes", "")
        raise ImportError(
            f"The format {format!r}{condition} needs {', '.join(missing)}. Install them with pip, or install keras_vit "
            f"with its extra {extra!r}."
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
            f"The format {format!r} is only written from models that compute in float32. {model.name!r} has layers of "
            f"another dtype policy. Build it with the policy 'float32' and copy the weights: "
            f"new_model.set_weights(model.get_weights())."
        )
    num_bytes = 4 * model.count_params()
    if FORMATS[format].is_one_message and num_bytes > _MESSAGE_BYTES:
        raise ValueError(
            f"A file of the format {format!r} must be smaller than 2 GiB, and the float32 weights of {model.name!r} "
            f"are {num_bytes / 2**30:.1f} GiB. Use format='openvino', or keras_vit.export_saved_model."
        )


def _images_for(model, images, precision):
    """The images that calibrate and those for the comparison, both as lists of arrays or `None`."""
    if precision == "int8" and images is None:
        raise ValueError(
            f"precision='int8' needs images: a few hundred images like those that will be served, as an array of shape "
            f"{model.input_shape} with pixels in [0, 255]. Received: images=None"
        )
    batches = None if images is None else _checked_images(model, images)
    return calibration.split_images(batches) if precision == "int8" else (None, batches)


def _checked_images(model, images):
    """Checks images, and returns them as a list of arrays."""
    arrays = [np.asarray(array) for array in (images if isinstance(images, (list, tuple)) else [images])]
    shape = model.input_shape
    wrong = [x for x in arrays if not fits(x.shape, shape) or not x.size or x.dtype.kind not in "uif"]
    if wrong or not arrays:
        received = f"{wrong[0].dtype} {wrong[0].shape}" if wrong else "an empty list"
        raise ValueError(
            f"images must be an array of shape {shape}, or a list of such arrays, with pixels in [0, 255]. Use "
            f"np.stack to join single images. Paths and data sets are not accepted. Received: {received}"
        )
    # Unlike `min` and `max`, those of NumPy propagate NaN.
    low, high = (function([function(array) for array in arrays]) for function in (np.min, np.max))
    if not (low >= 0 and high <= 255) or 0 < high <= 1:
        raise ValueError(
            f"images must have pixels in [0, 255], before normalisation. Received: pixels in [{low:g}, {high:g}]"
        )
    return arrays


def _photograph_sizes(model):
    """Returns a list of [height, width]: the model's image size or, if it is variable, a square and another size."""
    _, height, width, channels = model.input_shape
    architecture = preprocessing_layer(model).architecture
    if channels not in (1, 3) or (None in (height, width) and architecture is None):
        raise ValueError(
            f"The package has no photographs for images of shape {model.input_shape[1:]}. Give your own images for the "
            f"comparison: images=..."
        )
    if None not in (height, width):
        return [[height, width]]
    stride = read_architecture(architecture).total_stride
    return [[height or rows * stride[0], width or columns * stride[1]] for rows, columns in ((14, 14), (10, 13))]
