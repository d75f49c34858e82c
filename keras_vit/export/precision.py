"""Smaller weights of a SavedModel: a model that computes in bfloat16, and kernels that are stored in 8 bits."""

import keras
import numpy as np

from keras_vit.graph import all_layers
from keras_vit.preprocessing import Preprocessing

PRECISIONS = ("float32", "bfloat16", "int8")


def in_bfloat16(model):
    """A copy of a model with bfloat16 weights and activations. The preprocessing and the classifier do not change.

    Args:
        model: A functional `keras.Model`, which may contain nested models. It is not changed.

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


def round_to_int8(model):
    """Rounds a model's kernels to 255 values for each output channel, symmetric around zero.

    Args:
        model: A `keras.Model`. It is not changed.

    Returns:
        List of (weight, int8 array of its shape, float32 array). The product of the arrays approximates the weight.
        Biases, norms and embeddings are small and left out.
    """
    layers = {id(layer.kernel): layer for layer in all_layers(model) if hasattr(layer, "kernel")}
    return [
        (weight, *_rounded(keras.ops.convert_to_numpy(weight), _summed_axes(layers[id(weight)])))
        for weight in model.weights
        if id(weight) in layers and keras.backend.is_float_dtype(weight.dtype)
    ]


def _summed_axes(layer):
    """The axes of a layer's kernel that a product sums over. They share one scale."""
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
    """The classifiers of a model: the last layer with weights, and both classifiers of a distilled model."""
    last = [layer for layer in _leaves(model) if layer.weights][-1]
    distilled = last.name == "distillation_predictions"
    return [last, *(layer for layer in _leaves(model) if distilled and layer.name == "predictions")]


def _kept_layers(model):
    """The layers that keep their precision: `Preprocessing`, the classifiers, and the layers after them."""
    layers, heads = list(_leaves(model)), head_layers(model)
    return [layer for layer in layers if isinstance(layer, Preprocessing)] + heads + layers[layers.index(heads[0]) :]


def _leaves(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _leaves(layer)
        else:
            yield layer
