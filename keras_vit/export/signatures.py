"""What a SavedModel answers: the functions behind its signatures.

TensorFlow is imported inside the functions only. B batch, H W C image, h w grid of patches, D hidden, k classes named.
"""

import functools

import keras
from keras import ops

from keras_vit.analysis.attention import rollout
from keras_vit.analysis.features import patch_tokens, representation
from keras_vit.decoding import batch_decoder, input_protocol
from keras_vit.layers import EncoderBlock
from keras_vit.preprocessing import preprocess_input, preprocessing_layer, vision_model


def build_signatures(model, labels, top_k, jit_compile, image_size, max_image_pixels, batch_sizes):
    """The functions that a model is served with; `keras_vit.export_saved_model` says what each returns.

    Args:
        model: A classifier that `check_classifier` accepts.
        labels: List of the classes' names.
        top_k: How many classes are named, at most.
        jit_compile: Whether the model is compiled with XLA.
        image_size: (height, width) that encoded images are brought to, for a model of variable input size.
        max_image_pixels: An encoded image of more is not decoded.
        batch_sizes: Increasing numbers of images; the largest passes through the model at once. XLA compiles for each.

    Returns:
        {name of the signature: `tf.function` of one argument}
    """
    import tensorflow as tf

    _, size, channels = input_protocol(model, image_size)
    encoded = tf.TensorSpec([None], tf.string, "image_bytes")
    decode = _traced(batch_decoder(model, image_size, max_image_pixels), encoded)
    with_names = _class_namer(labels, top_k)

    @functools.cache
    def compiled(look):
        def compute(pixels):
            return tf.cast(look(model, preprocess_input(pixels, model)), tf.float32)

        compute = tf.function(compute, jit_compile=jit_compile, autograph=False)
        compute = _filled_up(compute, batch_sizes) if jit_compile else compute
        return lambda pixels: compute(tf.cast(pixels, tf.float32))  # Of one type, so that signatures share one graph.

    def of_images(signature):
        name, look = OUTPUTS[signature]
        compute = compiled(look)

        def part(image_bytes):
            pixels, valid = decode(image_bytes)
            outputs = compute(tf.ensure_shape(pixels, [None, *size, channels]))
            rows = tf.reshape(valid, [-1] + [1] * (outputs.shape.rank - 1))
            return {name: tf.where(rows, outputs, 0.0), "valid": valid}

        def serve(image_bytes):
            return with_names(_in_parts(part, image_bytes, batch_sizes[-1]))

        return _traced(serve, encoded)

    def of_pixels(dtype):
        spec = tf.TensorSpec([None, *model.input_shape[1:3], channels], dtype, "images")

        classify = compiled(probabilities)

        def serve(images):
            # A server does not check shapes: as many pixels in another order would be taken.
            images = tf.ensure_shape(images, spec.shape)
            return with_names(_in_parts(lambda part: {"probabilities": classify(part)}, images, batch_sizes[-1]))

        return _traced(serve, spec)

    served = {name: of_images(name) for name in ("serving_default", "embed")}
    served |= {"predict_pixels": of_pixels(tf.uint8), "predict_pixels_float": of_pixels(tf.float32)}
    if any(isinstance(layer, EncoderBlock) for layer in vision_model(model).layers):
        served |= {name: of_images(name) for name in ("tokens", "explain")}
    return served


def probabilities(model, images):
    """What a classifier makes of prepared images, (B, classes), also if it ends with logits."""
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
"""{signature: (name of its main output, the function of a model and its prepared images that computes it)}"""


def check_classifier(model):
    """Refuses a model of which it is not known what goes in and what comes out."""
    protocol = preprocessing_layer(model)
    activation = _last_activation(model) if len(model.output_shape) == 2 else None
    known = activation in (keras.activations.softmax, keras.activations.sigmoid, keras.activations.linear)
    if not known or (activation is keras.activations.linear and model.output_shape[-1] < 2):
        raise ValueError(
            f"Only classifiers are exported: the last layer must return probabilities, or logits of at least two "
            f"classes, of shape (B, classes). Received: a model that returns shape {model.output_shape} from layer "
            f"{model.layers[-1].name!r}."
        )
    if not protocol.normalize and not _starts_with(model, protocol):
        raise ValueError(
            f"{model.name!r} changes pixels before its preprocessing layer sees them, so it is not known how images "
            f"are to be normalised. Build the inner model with include_preprocessing=True, which does it inside."
        )


def _starts_with(model, layer):
    """Whether a layer is the first that sees a model's input, also where models are nested."""
    first = next(inner for inner in model.layers if not isinstance(inner, keras.layers.InputLayer))
    return _starts_with(first, layer) if isinstance(first, keras.Model) else first is layer


def _last_activation(model):
    """The activation that a model ends with, or `None` if it ends with a layer of another kind."""
    for layer in reversed(model.layers):
        if isinstance(layer, keras.Model):
            return _last_activation(layer)
        if isinstance(layer, keras.layers.Softmax):
            return keras.activations.softmax
        is_cast = isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.linear
        if not is_cast:
            return getattr(layer, "activation", None)
    return None


def _class_namer(labels, top_k):
    """A function that adds to outputs with `probabilities` the most probable classes of each row."""
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


def _traced(function, spec):
    """A `tf.function` of one argument, traced once whoever calls it; the functions here need no AutoGraph."""
    import tensorflow as tf

    return tf.function(function, input_signature=[spec], autograph=False)


def _filled_up(compute, batch_sizes):
    """`compute(rows)`, called with one of the batch sizes: for any other XLA would compile while a client waits."""
    import tensorflow as tf

    def compute_filled_up(rows):
        num_rows = tf.shape(rows)[0]
        size = tf.reduce_min(tf.boolean_mask(batch_sizes, tf.constant(batch_sizes) >= num_rows))
        return compute(tf.pad(rows, [[0, size - num_rows], *[[0, 0]] * (rows.shape.rank - 1)]))[:num_rows]

    return compute_filled_up


def _in_parts(compute, rows, part_size):
    """`compute(rows)`, a dictionary of tensors, of at most `part_size` rows at a time.

    Its memory does not grow with what a client sends, but for the rows themselves and the outputs.
    """
    import tensorflow as tf

    compute = _traced(compute, tf.TensorSpec([None, *rows.shape[1:]], rows.dtype))
    specs = compute.get_concrete_function().structured_outputs
    num_rows = tf.shape(rows)[0]
    num_parts = -(-num_rows // part_size)
    arrays = {
        name: tf.TensorArray(spec.dtype, num_parts, infer_shape=False, element_shape=spec.shape)
        for name, spec in specs.items()
    }

    def step(index, arrays):
        outputs = compute(rows[index * part_size : (index + 1) * part_size])
        return index + 1, {name: array.write(index, outputs[name]) for name, array in arrays.items()}

    # One after the other: parts side by side would need the memory of all of them.
    _, arrays = tf.while_loop(lambda index, _: index < num_parts, step, [0, arrays], parallel_iterations=1)
    return {name: array.concat() for name, array in arrays.items()}
