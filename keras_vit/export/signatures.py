"""The functions of a SavedModel's signatures.

TensorFlow is imported inside the functions only.
Shapes: B batch, H W C image, h w grid of patches, D hidden, k top classes.
"""

import functools
import math

import keras
from keras import ops

from keras_vit.analysis.architecture import merges_tokens
from keras_vit.analysis.attention import BLOCKS, has_rollout, rollout
from keras_vit.analysis.features import patch_tokens, representation
from keras_vit.checks import check_choice
from keras_vit.decoding import batch_decoder, input_protocol
from keras_vit.layers import UpsampleLike
from keras_vit.preprocessing import preprocess_input, preprocessing_layer, vision_model

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
    import tensorflow as tf

    _, size, channels = input_protocol(model, image_size)
    encoded = tf.TensorSpec([None], tf.string, "image_bytes")
    decode = batch_decoder(model, image_size, max_image_pixels)
    with_names = _class_namer(labels, top_k)
    # For segmentation, the outputs of each chunk are reduced to a mask, which takes less memory than probabilities.
    reduced = _mask_maker(len(labels)) if is_segmenter(model) else dict
    compiled = _compiler(model, rounded, jit_compile, batch_sizes)

    def image_function(signature):
        name, function = OUTPUTS[signature]
        compute = compiled(function)

        def serve_chunk(image_bytes):
            pixels, valid = decode(image_bytes)
            outputs = compute(tf.ensure_shape(pixels, [None, *size, channels]))
            return reduced({name: _where(valid, outputs), "valid": valid})

        def serve(image_bytes):
            return with_names(_in_chunks(serve_chunk, image_bytes, batch_sizes[-1]))

        return _traced(serve, encoded)

    def pixel_function(dtype):
        spec = tf.TensorSpec([None, *model.input_shape[1:3], channels], dtype, "images")
        classify = compiled(probabilities)

        def serve_chunk(images):
            if dtype == tf.uint8:
                return reduced({"probabilities": classify(images)})
            # Pixels that round to 0 to 255. This excludes NaN, normalised pixels, and overshoots of a bicubic resize,
            # which are clipped in training.
            valid = tf.reduce_all((images >= -0.5) & (images <= 255.5), axis=[1, 2, 3])
            outputs = classify(_where(valid, images))
            return reduced({"probabilities": _where(valid, outputs), "valid": valid})

        def serve(images):
            # A server does not check shapes, so it would accept images of another shape with the same number of pixels.
            images = tf.ensure_shape(images, spec.shape)
            return with_names(_in_chunks(serve_chunk, images, batch_sizes[-1]))

        return _traced(serve, spec)

    pixel_dtypes = {"predict_pixels": tf.uint8, "predict_pixels_float": tf.float32}
    return {
        name: pixel_function(pixel_dtypes[name]) if name in pixel_dtypes else image_function(name)
        for name in signatures
    }


def available_signatures(model):
    """Names of the signatures that a model can have, in the order of `OUTPUTS`."""
    names = ["serving_default", "predict_pixels", "predict_pixels_float"]
    if is_segmenter(model):
        return names
    names.append("embed")
    has_blocks = any(isinstance(layer, BLOCKS) for layer in vision_model(model).layers)
    if has_blocks and not merges_tokens(model):
        names += ["tokens", "explain"] if has_rollout(model) else ["tokens"]
    return names


def check_signatures(model, names):
    """Returns the chosen signatures in the order of `OUTPUTS`. `None` chooses all that the model can have."""
    available = available_signatures(model)
    if names is None:
        return available
    if not isinstance(names, (list, tuple)):
        raise TypeError(f"signatures must be a list of names, or None for all. Received: {names!r}")
    for name in names:
        check_choice("signatures", name, OUTPUTS)
    missing = [name for name in names if name not in available]
    if missing:
        raise ValueError(
            f"{model.name!r} cannot have the signature {missing[0]!r}. Choose from: {', '.join(available)}. "
            f"Received: signatures={names!r}"
        )
    if "serving_default" not in names:
        raise ValueError(
            f"signatures must contain 'serving_default': it answers requests without a signature name, and the "
            f"comparison with the model needs it. Received: {names!r}"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"signatures must contain each name only once. Received: {names!r}")
    return [name for name in available if name in names]


def _compiler(model, rounded, jit_compile, batch_sizes):
    """Returns a function that converts `function(model, prepared_images)` to a function that takes pixels."""
    import tensorflow as tf

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
        compute = _padded(compute, batch_sizes) if jit_compile else compute
        # The pixels of all signatures are cast to one dtype, so that the signatures share a graph.
        return lambda pixels: compute(tf.cast(pixels, tf.float32))

    return compiled


def probabilities(model, images):
    """Returns the probabilities for prepared images, (B, classes) or (B, H, W, classes). Applies softmax to logits."""
    outputs = ops.cast(model(images, training=False), "float32")
    return ops.softmax(outputs) if _last_activation(model) is keras.activations.linear else outputs


OUTPUTS = {
    "serving_default": ("probabilities", probabilities),
    "predict_pixels": ("probabilities", probabilities),
    "predict_pixels_float": ("probabilities", probabilities),
    "embed": ("embedding", representation),
    "tokens": ("tokens", patch_tokens),
    "explain": ("rollout", rollout),
}
"""{signature: (name of its main output, function that computes it from a model and prepared images)}"""


def is_segmenter(model):
    """Whether a model returns scores for each pixel of its images, (B, H, W, classes), and not for the whole image."""
    return len(model.output_shape) == 4 and model.output_shape[1:3] == model.input_shape[1:3]


def check_output(model):
    """Checks that the meaning of a model's inputs and outputs is known, so that it can be exported."""
    protocol = preprocessing_layer(model)
    has_known_shape = len(model.output_shape) == 2 or is_segmenter(model)
    activation = _last_activation(model) if has_known_shape else None
    has_scores = activation in (keras.activations.softmax, keras.activations.sigmoid, keras.activations.linear)
    needs_two = activation is keras.activations.linear or is_segmenter(model)
    if not has_scores or (needs_two and model.output_shape[-1] < 2):
        raise ValueError(
            f"Only classifiers and segmentation models can be exported. A classifier must return probabilities, or "
            f"logits of at least two classes, of shape (B, classes). A segmentation model must return probabilities or "
            f"logits of at least two classes for each pixel, (B, H, W, classes). Received: a model that returns shape "
            f"{model.output_shape} from layer {model.layers[-1].name!r}."
        )
    if not protocol.normalize and not _starts_with(model, protocol):
        raise ValueError(
            f"{model.name!r} changes pixels before its preprocessing layer, so it is unknown how images must be "
            f"normalised. Build the inner model with include_preprocessing=True, so that it normalises them itself."
        )


def _starts_with(model, layer):
    """Whether a layer is the first layer of a model. The layer may be inside a nested model."""
    first = next(inner for inner in model.layers if not isinstance(inner, keras.layers.InputLayer))
    return _starts_with(first, layer) if isinstance(first, keras.Model) else first is layer


def _last_activation(model):
    """The activation at the end of a model, or `None` if the last layer has none."""
    for layer in reversed(model.layers):
        if isinstance(layer, keras.Model):
            return _last_activation(layer)
        if isinstance(layer, keras.layers.Softmax):
            return keras.activations.softmax
        is_cast = isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.linear
        if not is_cast and not isinstance(layer, UpsampleLike):
            return getattr(layer, "activation", None)
    return None


def _class_namer(labels, top_k):
    """Returns a function that adds the most probable classes of each image to outputs that contain `probabilities`."""
    import tensorflow as tf

    top_k = min(top_k, len(labels))

    def with_names(outputs):
        if "probabilities" not in outputs:
            return outputs
        scores, classes = tf.math.top_k(outputs["probabilities"], top_k)
        names = tf.gather(tf.constant(labels), classes)
        if "valid" in outputs:
            valid = outputs["valid"][:, None]
            classes, names = tf.where(valid, classes, -1), tf.where(valid, names, "")
        return outputs | {"classes": classes, "labels": names, "scores": scores}

    return with_names


def _mask_maker(num_classes):
    """Returns a function that replaces `probabilities` by the most probable class of each pixel and its score."""
    import tensorflow as tf

    dtype = tf.uint8 if num_classes < 2**8 else tf.int32

    def as_mask(outputs):
        values = outputs["probabilities"]
        mask = tf.argmax(values, axis=-1, output_type=tf.int32)
        if "valid" in outputs:
            mask = tf.where(outputs["valid"][:, None, None], mask, 255 if dtype == tf.uint8 else -1)
        remaining = {name: output for name, output in outputs.items() if name != "probabilities"}
        return remaining | {"mask": tf.cast(mask, dtype), "score": tf.reduce_max(values, axis=-1)}

    return as_mask


def _where(valid, values):
    """Replaces the values (B, ...) by zeros in the rows where `valid`, (B,), is `False`."""
    import tensorflow as tf

    return tf.where(tf.reshape(valid, [-1] + [1] * (values.shape.rank - 1)), values, 0.0)


def _traced(function, spec):
    """Returns a `tf.function` of one argument that is traced only once. AutoGraph is off, as no function needs it."""
    import tensorflow as tf

    return tf.function(function, input_signature=[spec], autograph=False)


def _padded(compute, batch_sizes):
    """Returns a function that pads rows to one of `batch_sizes` before it calls `compute`.

    Without padding, XLA would compile the model for each new number of rows while clients wait.
    """
    import tensorflow as tf

    def compute_padded(rows):
        num_rows = tf.shape(rows)[0]
        size = tf.reduce_min(tf.boolean_mask(batch_sizes, tf.constant(batch_sizes) >= num_rows))
        return compute(tf.pad(rows, [[0, size - num_rows], *[[0, 0]] * (rows.shape.rank - 1)]))[:num_rows]

    return compute_padded


def _in_chunks(compute, rows, chunk_size):
    """Calls `compute(rows)`, which returns a dictionary of tensors, on at most `chunk_size` rows at a time.

    The memory that `compute` needs does not depend on the number of rows. The memory for the rows and the outputs grows
    with this number.
    """
    import tensorflow as tf

    traced = _traced(compute, tf.TensorSpec([None, *rows.shape[1:]], rows.dtype))
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
