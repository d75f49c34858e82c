"""Makes SavedModels smaller: converts models to bfloat16, and rounds kernels to 8 bits."""

import keras
import numpy as np

from keras_vit.graph import all_layers, leaves
from keras_vit.preprocessing import Preprocessing

PRECISIONS = ("float32", "bfloat16", "int8")
_PAIRS = ({"predictions", "distillation_predictions"}, {"predictions", "sky_predictions"})
"""Names of layers that are at the end of a model together"""


def in_bfloat16(model):
    """Returns a copy of a model in bfloat16. Preprocessing, rotary positions and classifier keep their precision.

    Args:
        model: A functional `keras.Model`, which may contain nested models. The model is not modified.

    Returns:
        A `keras.Model`.
    """
    layers, heads = list(leaves(model)), head_layers(model)
    # Preprocessing, the classifiers, and the layers after them.
    unchanged = [layer for layer in layers if isinstance(layer, Preprocessing)]
    unchanged += layers[min(map(layers.index, heads)) :]

    def clone(layer):
        copy = type(layer).from_config(layer.get_config())
        if not any(layer is other for other in unchanged):
            for inner in (copy, *all_layers(copy)):
                inner.dtype_policy = "bfloat16"
        return copy

    smaller = keras.models.clone_model(model, clone_function=clone, recursive=True)
    smaller.set_weights(model.get_weights())
    return smaller


def round_to_int8(model):
    """Rounds a model's kernels to integers from -127 to 127, with one scale for each output channel.

    Args:
        model: A `keras.Model`. The model is not modified.

    Returns:
        List of (weight, values, scale). The int8 array `values` has the shape of the weight, and `values * scale`
        approximates the weight. Biases, norms and embeddings are left out, because they are small.
    """
    layers = {id(layer.kernel): layer for layer in all_layers(model) if hasattr(layer, "kernel")}
    return [
        (weight, *_rounded(keras.ops.convert_to_numpy(weight), _summed_axes(layers[id(weight)])))
        for weight in model.weights
        if id(weight) in layers and keras.backend.is_float_dtype(weight.dtype)
    ]


def _summed_axes(layer):
    """The axes of a kernel over which the layer sums. All values along these axes have the same scale."""
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
    """The last layers with weights: both classifiers of a distilled model, those of depth and sky, otherwise one."""
    last = [layer for layer in leaves(model) if layer.weights][-1]
    return [last, *(layer for layer in leaves(model) if {layer.name, last.name} in _PAIRS)]
