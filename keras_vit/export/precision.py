"""A model with smaller weights."""

import warnings

import keras

from keras_vit.preprocessing import Preprocessing

PRECISIONS = ("float32", "bfloat16", "int8")


def with_precision(model, precision):
    """A model that stores its weights in a precision; the given one is left as it is.

    Args:
        model: A functional `keras.Model`, also with others nested in it.
        precision: `"float32"`: the model itself. `"bfloat16"`: weights and activations are; normalising the pixels and
            classifying stay as they are. `"int8"`: Keras's dynamic quantisation: kernels are stored in 8 bits for each
            output channel, activations are brought to 8 bits for each row as they come. Convolutions, norms and
            embeddings stay as they are.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: If the precision would change nothing.
    """
    if precision == "float32":
        return model
    if precision == "int8":
        smaller = keras.models.clone_model(model)
        smaller.set_weights(model.get_weights())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
            smaller.quantize("int8")
        if not any(weight.dtype == "int8" for weight in smaller.weights):
            raise ValueError(
                f"precision='int8' stores dense layers in 8 bits, and {model.name!r} has none: its size would stay as "
                f"it is. Use precision='bfloat16'."
            )
        return smaller
    kept = _kept_layers(model)

    def clone(layer):
        dtype = {} if any(layer is other for other in kept) else {"dtype": "bfloat16"}
        return type(layer).from_config(layer.get_config() | dtype)

    smaller = keras.models.clone_model(model, clone_function=clone, recursive=True)
    smaller.set_weights(model.get_weights())
    return smaller


def _kept_layers(model):
    """The `Preprocessing` layer, the last layer with weights and what follows it."""
    layers = list(_leaves(model))
    first = max(index for index, layer in enumerate(layers) if layer.weights)
    kept = [layer for layer in layers[:first] if isinstance(layer, Preprocessing)]
    if layers[first].name == "distillation_predictions":
        kept.extend(layer for layer in layers[:first] if layer.name == "predictions")
    return kept + layers[first:]


def _leaves(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _leaves(layer)
        else:
            yield layer
