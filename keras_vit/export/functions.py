"""The functions of a SavedModel's signatures.

Shapes: B batch, H W C image.
"""

import functools
import math

import keras
import tensorflow as tf

from keras_vit.data.decoding import batch_decoder, upright_size
from keras_vit.export.answers import answer_of, by_name, void
from keras_vit.export.in_parts import MEANINGS, in_chunks
from keras_vit.export.signatures import ORIGINAL, output_of_signature
from keras_vit.outputs import output_of
from keras_vit.preprocessing import input_preprocessing, preprocess_input

_LARGEST_CONSTANT = 2**14
"""Weights with at most this many values are stored as constants of the graph. Larger weights are variables."""


def build_signatures(model, rounded, signatures, labels, top_k, jit_compile, image_size, max_image_pixels, batch_sizes):
    """Builds the functions that serve a model. `keras_vit.export_saved_model` describes their outputs.

    Args:
        model: A model that `check_output` accepts.
        rounded: List of (weight, values, scale). `values` (int8) and `scale` (float32) are `tf.Variable`s. Their
            product replaces the weight.
        signatures: Names of the signatures, some of `available_signatures(model)`.
        labels: List of the names of the classes.
        top_k: Maximum number of returned classes.
        jit_compile: Whether the model is compiled with XLA.
        image_size: (height, width) of decoded images, for a model of variable input size.
        max_image_pixels: Maximum height times width of an image that is decoded.
        batch_sizes: Batch sizes, in increasing order. Batches larger than the last size are split. XLA compiles the
            model for each size.

    Returns:
        {name of the signature: `tf.function` of one argument}
    """
    _, size, channels = input_preprocessing(model, image_size)
    decode = batch_decoder(model, image_size, max_image_pixels)
    answer, is_thing = answer_of(model), output_of(model).is_thing
    compiled = _compiler(model, rounded, jit_compile, batch_sizes)

    pixel_dtypes = {"predict_pixels": tf.uint8, "predict_pixels_float": tf.float32}

    def function_of(signature):
        names, function = output_of_signature(model, signature)
        compute, dtype = compiled(function), pixel_dtypes.get(signature)
        spec = tf.TensorSpec([None], tf.string, "image_bytes")
        if dtype is not None:
            spec = tf.TensorSpec([None, *model.input_shape[1:3], channels], dtype, "images")

        def serve_chunk(images):
            if dtype == tf.uint8:
                return answer.reduced(by_name(names, compute(images)))
            if dtype == tf.float32:
                # Pixels that round to 0 to 255. This excludes NaN, normalised pixels, and overshoots of a bicubic
                # resize, which are clipped in training.
                valid = tf.reduce_all((images >= -0.5) & (images <= 255.5), axis=[1, 2, 3])
                images = where_valid(valid, images)
            else:
                images, valid = decode(images)
                images = tf.ensure_shape(images, [None, *size, channels])
            outputs = {name: where_valid(valid, output) for name, output in by_name(names, compute(images)).items()}
            return answer.reduced(outputs | {"valid": valid})

        def serve(images):
            # A server does not check shapes, so it would accept images of another shape with the same number of pixels.
            images = tf.ensure_shape(images, spec.shape)
            if signature in ORIGINAL:
                find = functools.partial(MEANINGS[signature], answer, is_thing, size)
                outputs = _in_original(lambda image, sides: find(by_name(names, compute(image)), sides), decode, images)
                return answer.named(outputs, labels, top_k)
            return answer.named(in_chunks(serve_chunk, images, batch_sizes[-1]), labels, top_k)

        # It is traced only once. AutoGraph has nothing to convert here.
        return tf.function(serve, input_signature=[spec], autograph=False)

    return {name: function_of(name) for name in signatures}


def stored_weights(model, rounded, jit_compile):
    """Returns a function without arguments for a graph: pairs of a weight of a model and the tensor that replaces it.

    `build_signatures` describes the arguments. Weights that are not replaced are variables.
    """
    # Without XLA, small weights such as biases are constants of the graph, so that TensorFlow can fuse the operations
    # that use them. With XLA, all weights are variables, because XLA does not support TensorFlow's fused operations.
    limit = 0 if jit_compile else _LARGEST_CONSTANT
    rounded_ids = {id(weight) for weight, *_ in rounded}
    small = [weight for weight in model.variables if math.prod(weight.shape) <= limit and id(weight) not in rounded_ids]
    small = [(weight, weight.numpy()) for weight in small]

    def weights():
        constants = [(weight, tf.constant(value)) for weight, value in small]
        return constants + [(weight, tf.cast(values, scale.dtype) * scale) for weight, values, scale in rounded]

    return weights


def _compiler(model, rounded, jit_compile, batch_sizes):
    """Returns a function that converts `function(model, prepared_images)` to a function that takes pixels."""
    weights = stored_weights(model, rounded, jit_compile)

    @functools.cache
    def compiled(function):
        def compute(pixels):
            with keras.StatelessScope(weights()):
                outputs = function(model, preprocess_input(pixels, model))
                return tf.nest.map_structure(lambda output: tf.cast(output, tf.float32), outputs)

        compute = tf.function(compute, jit_compile=jit_compile, autograph=False)
        if jit_compile:
            compute = functools.partial(_padded, compute, batch_sizes=batch_sizes)
        # The pixels of all signatures are cast to one dtype, so that the signatures share a graph.
        return lambda pixels: compute(tf.cast(pixels, tf.float32))

    return compiled


def where_valid(valid, values):
    """Replaces the values (B, ...) by zeros in the rows where `valid`, (B,), is `False`."""
    return tf.where(tf.reshape(valid, [-1] + [1] * (values.shape.rank - 1)), values, 0.0)


def _padded(compute, rows, batch_sizes):
    """Pads rows to one of `batch_sizes` before it calls `compute`.

    Without padding, XLA would compile the model for each new number of rows while clients wait.
    """
    num_rows = tf.shape(rows)[0]
    size = tf.reduce_min(tf.boolean_mask(batch_sizes, tf.constant(batch_sizes) >= num_rows))
    outputs = compute(tf.pad(rows, [[0, size - num_rows], *[[0, 0]] * (rows.shape.rank - 1)]))
    return tf.nest.map_structure(lambda output: output[:num_rows], outputs)


def _in_original(find, decode, files):
    """Computes outputs in pixels of the original images, one image after the other.

    Args:
        find: Function of a decoded image (1, h, w, C) and the size (H, W) of the original one. It returns {name: tensor
            or `RaggedTensor` of any size}.
        decode: Function that decodes files, as `batch_decoder` makes it.
        files: Encoded images, (B,).

    Returns:
        {name: tensor (B, ...)}, padded to the largest output of the batch, with `sizes`, (B, 2), and `valid`, (B,).
    """
    images, valid = decode(files)
    sizes = tf.where(valid[:, None], tf.cast(upright_size(files), tf.int32), 0)

    def compute(row):
        image, size = row
        outputs = find(image[None], tf.maximum(size, 1))
        is_valid = tf.cast(size[0] > 0, tf.int32)
        # An image that is not valid has empty outputs.
        return {name: _ragged(output[: is_valid * tf.shape(output)[0]]) for name, output in outputs.items()}

    row = tf.TensorSpec(images.shape[1:], images.dtype), tf.TensorSpec([2], sizes.dtype)
    specs = tf.function(compute, [row], autograph=False).get_concrete_function().structured_outputs
    signature = {
        name: tf.RaggedTensorSpec(spec.shape, spec.dtype, min(spec.shape.rank - 1, 1)) for name, spec in specs.items()
    }
    rows = tf.map_fn(compute, (images, sizes), fn_output_signature=signature, parallel_iterations=1)
    outputs = {}
    for name, each in rows.items():
        fill = {"mask": void(each.dtype), "classes": -1}.get(name, 0)
        outputs[name] = each.to_tensor(tf.cast(fill, each.dtype))
    if "classes" in rows:
        outputs["num_objects"] = tf.cast(rows["classes"].row_lengths(), tf.int32)
    return outputs | {"sizes": sizes, "valid": valid}


def _ragged(output):
    """A tensor (H, W, ...) as a `RaggedTensor`. Vectors are not changed."""
    is_ragged = isinstance(output, tf.RaggedTensor) or output.shape.rank == 1
    return output if is_ragged else tf.RaggedTensor.from_tensor(output)
