"""The functions of a SavedModel's signatures.

Shapes: B batch, H W C image.
"""

import functools
import math

import keras
import tensorflow as tf

from keras_vit.data.decoding import batch_decoder
from keras_vit.export.answers import answer_of
from keras_vit.export.signatures import output_of_signature
from keras_vit.preprocessing import input_preprocessing, preprocess_input

_LARGEST_CONSTANT = 2**14
"""Weights with at most this many values are stored as constants of the graph. Larger weights are variables."""


def build_signatures(model, rounded, signatures, labels, top_k, jit_compile, image_size, max_image_pixels, batch_sizes):
    """Builds the functions that serve a model. `keras_vit.export_saved_model` describes their outputs.

    Args:
        model: A classifier or segmentation model that `check_output` accepts.
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
    answer = answer_of(model)
    compiled = _compiler(model, rounded, jit_compile, batch_sizes)

    pixel_dtypes = {"predict_pixels": tf.uint8, "predict_pixels_float": tf.float32}

    def function_of(signature):
        name, function = output_of_signature(model, signature)
        compute, dtype = compiled(function), pixel_dtypes.get(signature)
        spec = tf.TensorSpec([None], tf.string, "image_bytes")
        if dtype is not None:
            spec = tf.TensorSpec([None, *model.input_shape[1:3], channels], dtype, "images")

        def serve_chunk(images):
            if dtype == tf.uint8:
                return answer.reduced({name: compute(images)}, labels)
            if dtype == tf.float32:
                # Pixels that round to 0 to 255. This excludes NaN, normalised pixels, and overshoots of a bicubic
                # resize, which are clipped in training.
                valid = tf.reduce_all((images >= -0.5) & (images <= 255.5), axis=[1, 2, 3])
                images = _where(valid, images)
            else:
                images, valid = decode(images)
                images = tf.ensure_shape(images, [None, *size, channels])
            return answer.reduced({name: _where(valid, compute(images)), "valid": valid}, labels)

        def serve(images):
            # A server does not check shapes, so it would accept images of another shape with the same number of pixels.
            images = tf.ensure_shape(images, spec.shape)
            return answer.named(_in_chunks(serve_chunk, images, batch_sizes[-1]), labels, top_k)

        # It is traced only once. AutoGraph has nothing to convert here.
        return tf.function(serve, input_signature=[spec], autograph=False)

    return {name: function_of(name) for name in signatures}


def _compiler(model, rounded, jit_compile, batch_sizes):
    """Returns a function that converts `function(model, prepared_images)` to a function that takes pixels."""
    # Without XLA, small weights such as biases are constants of the graph, so that TensorFlow can fuse the operations
    # that use them. With XLA, all weights are variables, because XLA does not support TensorFlow's fused operations.
    limit = 0 if jit_compile else _LARGEST_CONSTANT
    rounded_ids = {id(weight) for weight, *_ in rounded}
    small = [weight for weight in model.variables if math.prod(weight.shape) <= limit and id(weight) not in rounded_ids]
    small = [(weight, weight.numpy()) for weight in small]

    def weights():
        constants = [(weight, tf.constant(value)) for weight, value in small]
        return constants + [(weight, tf.cast(values, scale.dtype) * scale) for weight, values, scale in rounded]

    @functools.cache
    def compiled(function):
        def compute(pixels):
            with keras.StatelessScope(weights()):
                return tf.cast(function(model, preprocess_input(pixels, model)), tf.float32)

        compute = tf.function(compute, jit_compile=jit_compile, autograph=False)
        if jit_compile:
            compute = functools.partial(_padded, compute, batch_sizes=batch_sizes)
        # The pixels of all signatures are cast to one dtype, so that the signatures share a graph.
        return lambda pixels: compute(tf.cast(pixels, tf.float32))

    return compiled


def _where(valid, values):
    """Replaces the values (B, ...) by zeros in the rows where `valid`, (B,), is `False`."""
    return tf.where(tf.reshape(valid, [-1] + [1] * (values.shape.rank - 1)), values, 0.0)


def _padded(compute, rows, batch_sizes):
    """Pads rows to one of `batch_sizes` before it calls `compute`.

    Without padding, XLA would compile the model for each new number of rows while clients wait.
    """
    num_rows = tf.shape(rows)[0]
    size = tf.reduce_min(tf.boolean_mask(batch_sizes, tf.constant(batch_sizes) >= num_rows))
    return compute(tf.pad(rows, [[0, size - num_rows], *[[0, 0]] * (rows.shape.rank - 1)]))[:num_rows]


def _in_chunks(compute, rows, chunk_size):
    """Calls `compute(rows)`, which returns a dictionary of tensors, on at most `chunk_size` rows at a time.

    The memory that `compute` needs does not depend on the number of rows. The memory for the rows and the outputs grows
    with this number.
    """
    traced = tf.function(compute, [tf.TensorSpec([None, *rows.shape[1:]], rows.dtype)], autograph=False)
    specs = traced.get_concrete_function().structured_outputs
    num_rows = tf.shape(rows)[0]
    num_chunks = -(-num_rows // chunk_size)

    def start(spec):
        """A `TensorArray` that starts with an empty chunk, so that outputs have a shape even if there are no rows."""
        # An output of variable size, such as a mask (B, H, W), has the first axes of the rows (B, H, W, C).
        sides = [tf.shape(rows)[axis] if side is None else side for axis, side in enumerate(spec.shape)]
        array = tf.TensorArray(spec.dtype, num_chunks + 1, infer_shape=False, element_shape=spec.shape)
        return array.write(num_chunks, tf.zeros([0, *sides[1:]], spec.dtype))

    arrays = {name: start(spec) for name, spec in specs.items()}

    def step(index, arrays):
        outputs = compute(rows[index * chunk_size : (index + 1) * chunk_size])
        return index + 1, {name: array.write(index, outputs[name]) for name, array in arrays.items()}

    # The chunks run one after the other. In parallel, they would need the memory of all chunks at once.
    _, arrays = tf.while_loop(lambda index, _: index < num_chunks, step, [0, arrays], parallel_iterations=1)
    return {name: array.concat() for name, array in arrays.items()}
