"""Rematerialisation: training recomputes activations instead of storing them."""

import functools

import keras

from keras_vit.layers.ops.repeated_draws import RepeatedDraws


def rematerializable(call):
    """Decorates the `call` of a layer that has an attribute `use_rematerialization`.

    If the attribute is `True`, training stores only the first argument of `call` and recomputes the layer's activations
    for the gradients ("Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174). In the recomputation, dropout
    and drop path draw the same random numbers again. These are also the numbers that training without rematerialisation
    would draw.
    """

    @functools.wraps(call)
    def call_or_rematerialize(layer, tokens, *arguments, training=None, **options):
        if not (training and layer.use_rematerialization):
            return call(layer, tokens, *arguments, training=training, **options)
        draws, dtypes = RepeatedDraws(), []

        def transform(tokens):
            with draws.replay():
                outputs = call(layer, tokens, *arguments, training=training, **options)
            dtypes[:] = [keras.backend.standardize_dtype(output.dtype) for output in keras.tree.flatten(outputs)]
            return keras.tree.map_structure(_as_float, outputs)

        outputs = keras.remat(transform)(tokens)
        draws.advance()
        restored = map(keras.ops.cast, keras.tree.flatten(outputs), dtypes)
        return keras.tree.pack_sequence_as(outputs, list(restored))

    return call_or_rematerialize


def _as_float(output):
    """Casts integers to float32, because TensorFlow cannot recompute integer outputs."""
    return keras.ops.cast(output, "float32") if "int" in keras.backend.standardize_dtype(output.dtype) else output
