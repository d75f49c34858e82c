"""Smaller weights of a SavedModel: a model that computes in bfloat16, and kernels that are kept in 8 bits."""

import keras
import numpy as np

from keras_vit.graph import all_layers
from keras_vit.preprocessing import Preprocessing

PRECISIONS = ("float32", "bfloat16", "int8")


def in_bfloat16(model):
    """A model whose weights and activations are bfloat16; normalising the pixels and classifying stay as they are.

    Args:
        model: A functional `keras.Model`, also with others nested in it. It is left as it is.

    Returns:
        A `keras.Model`.
    """
    kept = _kept_layers(model)

    def clone(layer):
        copy = type(layer).from_config(layer.get_config())
        if not any(layer is other for other in kept):
            for part in (copy, *all_layers(copy)):
                part.dtype_policy = "bfloat16"
        return copy

    smaller = keras.models.clone_model(model, clone_function=clone, recursive=True)
    smaller.set_weights(model.get_weights())
    return smaller


def in_8_bits(model):
    """What a model's kernels are rounded to: 255 numbers for each output channel, zero in their middle.

    Args:
        model: A `keras.Model`. It is left as it is.

    Returns:
        List of (the weight, int8 array of its shape, float32 array): their product is near the weight. Biases,
        norms and embeddings are small, and none of them.
    """
    layers = {id(layer.kernel): layer for layer in all_layers(model) if hasattr(layer, "kernel")}
    return [
        (weight, *_rounded(keras.ops.convert_to_numpy(weight), _summed_axes(layers[id(weight)])))
        for weight in model.weights
        if id(weight) in layers and keras.backend.is_float_dtype(weight.dtype)
    ]


def _summed_axes(layer):
    """The axes of a layer's kernel that a product sums over, and that have one scale together."""
    if isinstance(layer, keras.layers.EinsumDense):
        inputs, outputs = layer.equation.split("->")
        return tuple(axis for axis, letter in enumerate(inputs.split(",")[1]) if letter not in outputs)
    is_depthwise = isinstance(layer, (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D))
    return tuple(range(layer.kernel.ndim - (2 if is_depthwise else 1)))


def _rounded(kernel, axes):
    largest = np.abs(kernel).max(axis=axes, keepdims=True)
    scale = np.where(largest > 0, largest / 127, 1).astype("float32")
    return np.rint(kernel / scale).astype("int8"), scale


def head_layers(model):
    """The layers that classify: the last one with weights, and of a distilled model both."""
    last = [layer for layer in _leaves(model) if layer.weights][-1]
    distilled = last.name == "distillation_predictions"
    return [last, *(layer for layer in _leaves(model) if distilled and layer.name == "predictions")]


def _kept_layers(model):
    """The `Preprocessing` layer, those that classify, and what follows them."""
    layers, heads = list(_leaves(model)), head_layers(model)
    return [layer for layer in layers if isinstance(layer, Preprocessing)] + heads + layers[layers.index(heads[0]) :]


def _leaves(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _leaves(layer)
        else:
            yield layer
