"""Writes a SavedModel, loads it and runs it. Keras must run on TensorFlow. Shapes: N images, H W C image."""

import pathlib

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding import decode_upright, image_decoder
from keras_vit.export.functions import build_signatures
from keras_vit.export.messages import without_messages
from keras_vit.export.parity import computes_in_float32, full_precision, read_images
from keras_vit.export.precision import in_bfloat16, round_to_int8
from keras_vit.export.signatures import ORIGINAL, SIGNATURES, output_of_signature
from keras_vit.export.smaller_graph import remove_nodes
from keras_vit.preprocessing import input_preprocessing

_NUM_IMAGES = 8
"""Number of images for the signatures other than `serving_default`, which gets all images."""
_MOST_BYTES = 2**29
"""Size of the outputs of a signature after which no more than `_NUM_IMAGES` images are compared."""
_MAX_REQUESTS = 1000
"""Maximum number of requests (tensorflow_serving/g3doc/saved_model_warmup.md). Servers refuse models with more."""
_GRAY, _TOKEN = 128, 1
"""Values of the pixels and of the token ids of warm-up requests."""


def write_saved_model(model, folder, answers, labels, precision, images, model_name, batch_sizes, **options):
    """Writes a SavedModel with its labels and warm-up requests, loads it and runs it on images.

    Args:
        model: A model that `check_output` accepts, with Keras on TensorFlow.
        folder: Folder to write to.
        answers: Path of an `.npz` file. The outputs of the loaded model are written to this file. The images before
            normalisation are written to it under the name `pixels`.
        labels: List of the names of the classes.
        precision: One of `precision.PRECISIONS`.
        images: Paths of the images for the comparison. `None`: the photographs of this package. If weights or
            computations have a lower precision than float32, mirror images and crops of these photographs are added, so
            that predicted classes are compared on more images.
        model_name: Name of the model for clients.
        batch_sizes: Batch sizes of the warm-up requests. Batches above the largest size are split.
        **options: Further arguments of `functions.build_signatures`.
    """
    folder = pathlib.Path(folder)
    served_model, rounded = lowered(model, precision)
    served = build_signatures(model=served_model, rounded=rounded, labels=labels, batch_sizes=batch_sizes, **options)
    save(served, folder)
    (folder / "assets" / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    _, size, channels = input_preprocessing(model, options["image_size"])
    specs = {name: function.input_signature for name, function in served.items()}
    write_warmup(folder, model_name, specs, [*size, channels], read_images(None)[0], batch_sizes)
    files = read_images(images)
    if images is None and (precision != "float32" or not computes_in_float32(model)):
        files = [view for file in files for view in _views(file)]
    decode = image_decoder(model, options["image_size"])
    pixels = np.stack([_decoded(decode, file, index, images) for index, file in enumerate(files)])
    with full_precision():
        arrays = _run_signatures(model, folder, files, pixels, max(batch_sizes))
    np.savez(answers, pixels=pixels[: len(next(iter(arrays.values())))], **arrays)


def lowered(model, precision):
    """(the model or its copy in bfloat16, the kernels that are stored in int8, as `build_signatures` takes them)"""
    rounded = round_to_int8(model) if precision == "int8" else []
    rounded = [(weight, tf.Variable(values), tf.Variable(scale)) for weight, values, scale in rounded]
    return in_bfloat16(model) if precision == "bfloat16" else model, rounded


def save(served, folder):
    """Writes a SavedModel with the signatures {name: `tf.function`} to a folder."""
    concrete = {name: function.get_concrete_function() for name, function in served.items()}
    root = tf.Module()
    # Weights that are constants of the graph are not stored a second time.
    root.weights = list({id(variable): variable for each in concrete.values() for variable in each.variables}.values())
    # Keras's ExportArchive is not used. It would trace every function again, and keep a second copy of each.
    with without_messages("tensorflow"):  # Otherwise TensorFlow would log the path of the temporary folder.
        tf.saved_model.save(root, str(folder), signatures=concrete)
    remove_nodes(folder)


def _decoded(decode, file, index, paths):
    try:
        return decode(file)
    except tf.errors.InvalidArgumentError:
        raise ValueError(f"images must be JPEG, PNG, GIF, BMP or WebP files. {paths[index]} cannot be read.") from None


def _run_signatures(model, folder, files, pixels, batch_size):
    """Runs a SavedModel. Returns {"signature/main output": array}.

    Maps of classes are (N, H, W, 2): class and score of each pixel. Pixels of the original images are computed for one
    image, and not returned, because they follow from the outputs of `serving_default`.
    """
    signatures = tf.saved_model.load(str(folder)).signatures
    answers = {}
    for name in [name for name in SIGNATURES if name in signatures]:
        outputs, _ = output_of_signature(model, name)
        last = 1 if name in ORIGINAL else None if name == "serving_default" else _NUM_IMAGES
        [spec] = signatures[name].structured_input_signature[1].values()
        rows = (files if spec.dtype == tf.string else pixels)[:last]
        chunks = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
        results = []
        for chunk in chunks:
            results.append(signatures[name](**{spec.name: tf.constant(chunk, spec.dtype)}))
            size = sum(result[output].numpy().nbytes for result in results for output in outputs if output in result)
            if size > _MOST_BYTES and sum(map(len, chunks[: len(results)])) >= _NUM_IMAGES:
                break
        if not all(np.all(result.get("valid", True)) for result in results):
            raise ValueError(
                "The SavedModel cannot read all images of the comparison. They may be larger than max_image_pixels. "
                "(The photographs of this package have up to 98,560 pixels.) Give smaller images."
            )
        if name not in ORIGINAL:
            parts = {output: [_main_output(result, output) for result in results] for output in outputs}
            answers |= {f"{name}/{output}": np.concatenate(arrays) for output, arrays in parts.items()}
    return answers


def _main_output(outputs, name):
    return np.stack([outputs["mask"], outputs["score"]], axis=-1) if "mask" in outputs else outputs[name]


def _views(file):
    """Returns an encoded image, its mirror image and crops of it, all encoded."""
    image = decode_upright(file, 3)
    height, width, _ = image.shape
    views = [image, image[:, ::-1]]
    for top in (0, height // 3):
        for left in (0, width // 4, width // 3):
            views.append(image[top : top + 2 * height // 3, left : left + 2 * width // 3])
    return [tf.io.encode_jpeg(view, quality=95).numpy() for view in views]


def write_warmup(folder, model_name, specs, image_shape, photograph, batch_sizes):
    """Writes `assets.extra/tf_serving_warmup_requests`: a request for each signature and each batch size.

    The file is a TFRecord of `tensorflow.serving.PredictionLog` messages. They are written in protobuf's wire format
    directly, so that an export does not need the package of TensorFlow Serving.

    Args:
        folder: Folder of the SavedModel.
        model_name: Name by which clients request the model.
        specs: {name of the signature: list of the `tf.TensorSpec`s of its inputs}
        image_shape: [height, width, channels] of images, for the signatures whose inputs are pixels.
        photograph: Contents of an image file, for the signatures whose inputs are encoded images.
        batch_sizes: Batch sizes of the requests.

    Raises:
        ValueError: If there are more requests than a server accepts.
    """
    if len(specs) * len(batch_sizes) > _MAX_REQUESTS:
        raise ValueError(
            f"batch_sizes must have at most {_MAX_REQUESTS // len(specs)} numbers, because a server accepts "
            f"{_MAX_REQUESTS} warm-up requests, and there are {len(specs)} signatures. Received: {len(batch_sizes)} "
            f"numbers."
        )
    path = pathlib.Path(folder) / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in specs.items():
            for batch_size in batch_sizes:
                tensors = {spec.name: _warmup_tensor(spec, batch_size, image_shape, photograph) for spec in inputs}
                writer.write(_prediction_log(model_name, signature, tensors))


def _warmup_tensor(spec, batch_size, image_shape, photograph):
    """A `TensorProto` for an input: encoded images, pixels, or token ids."""
    if spec.dtype == tf.string:
        value, shape = photograph, []
    elif spec.dtype == tf.int32:
        value, shape = _TOKEN, [side or 1 for side in spec.shape[1:]]
    else:
        value, shape = _GRAY, image_shape
    # One value is stored for all elements (tensor.proto: "the last value is repeated"), which saves megabytes.
    tensor = tf.make_tensor_proto(value, spec.dtype, shape=[])
    tensor.tensor_shape.CopyFrom(tf.TensorShape([batch_size, *shape]).as_proto())
    return tensor


def _prediction_log(model_name, signature, tensors):
    """The message `PredictionLog(predict_log=PredictLog(request=PredictRequest(...)))`, encoded by field numbers."""
    model_spec = _field(1, model_name.encode()) + _field(3, signature.encode())
    entries = [_field(1, name.encode()) + _field(2, tensor.SerializeToString()) for name, tensor in tensors.items()]
    request = _field(1, model_spec) + b"".join(_field(2, entry) for entry in entries)
    return _field(6, _field(1, request))


def _field(number, content):
    """A length-delimited field of protobuf's wire format."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value):
    """An integer in groups of seven bits, the lowest bits first. If a byte's highest bit is 1, more bytes follow."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
