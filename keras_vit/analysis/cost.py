"""Counts the parameters and multiply-accumulates of a model, layer by layer."""

import dataclasses
import inspect
import math

import keras

from keras_vit import layers
from keras_vit.graph import as_functional, run_operations

# Layers of Keras that apply their kernel once at each output position.
_KERNEL_LAYERS = (keras.layers.Dense, keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
# Layers that have weights, but whose operations are usually not counted.
_UNCOUNTED_LAYERS = (
    layers.ClassToken,
    layers.GroupNormalization,
    layers.LayerNormalization,
    layers.LayerScale,
    layers.LearnedPositionEmbedding,
    layers.RegisterTokens,
    keras.layers.BatchNormalization,
    keras.layers.Embedding,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.Normalization,
)


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """The cost of one layer: its name, output shape, number of weights, and multiply-accumulates for one image."""

    name: str
    output_shape: tuple
    parameters: int
    macs: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """The cost of a model: number of weights, multiply-accumulates (MACs) for one image, and the cost of each layer."""

    parameters: int
    macs: int
    layers: tuple[LayerCost, ...]

    def __str__(self):
        rows = [("layer", "output shape", "parameters", "MACs")]
        rows += [(cost.name, str(cost.output_shape), f"{cost.parameters:,}", f"{cost.macs:,}") for cost in self.layers]
        rows += [("total", "", f"{self.parameters:,}", f"{self.macs:,}")]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {parameters:>{widths[2]}}  {macs:>{widths[3]}}"
            for name, shape, parameters, macs in rows
        )


def profile(model: keras.Model, input_shape: tuple[int, int, int] | None = None) -> Profile:
    """Counts the parameters and multiply-accumulates of a model.

    Multiply-accumulates (MACs) are counted for one image, in dense layers, convolutions and both matrix products of
    attention. The number of FLOPs is twice as large. Norms, activations, biases and sums are not counted, as is usual
    for these models. As in papers, the last block is counted as if it computed all tokens, keys and values. The model
    may compute less: only the class token, without separate keys and values. Weights that two layers share are counted
    once. The model is not executed. To profile a model that does not fit into memory, build it inside
    `keras.StatelessScope(initialize_variables=False)`.

    Args:
        model: A functional `keras.Model`, such as those of this package. It may contain nested models.
        input_shape: `(height, width, channels)`, required for a model of variable size.

    Returns:
        A `Profile` with `.parameters`, `.macs` and `.layers`. If it is printed, it shows a table.

    Raises:
        TypeError: If the model is not functional, or the MACs of a layer with weights are unknown.
        ValueError: If the model is of variable size and `input_shape` is not given.

    Example:

    >>> import keras_vit
    >>> cost = keras_vit.profile(keras_vit.ViTTi16())
    >>> print(f"{cost.parameters:,} parameters, {cost.macs / 1e9:.3f} GMACs")
    5,717,416 parameters, 1.254 GMACs
    """
    function = as_functional(model)
    shapes = [tensor.shape[1:] for tensor in function.inputs] if input_shape is None else [tuple(input_shape)]
    if None in shapes[0]:
        raise ValueError(
            f"The model takes images of shape {function.input_shape[1:]}, and MACs depend on the image size. Give "
            f"input_shape, for example profile(model, input_shape=(224, 224, 3))."
        )
    costs = tuple(_layer_costs(function, [(1, *shape) for shape in shapes], set()))
    parameters = sum(math.prod(weight.shape) for weight in model.weights)
    return Profile(parameters, sum(cost.macs for cost in costs), costs)


def _layer_costs(model, input_shapes, counted):
    """Returns a `LayerCost` for each call of a layer. `counted` collects the layers whose weights are counted."""
    costs = []

    def with_cost(layer):
        def output_spec(*inputs, **arguments):
            outputs = layer.compute_output_spec(*inputs, **arguments)
            if isinstance(layer, keras.Model):
                shapes = [tuple(tensor.shape) for tensor in keras.tree.flatten(inputs)]
                costs.extend(_layer_costs(as_functional(layer), shapes, counted))
            elif isinstance(layer, keras.layers.Layer):
                costs.append(_layer_cost(layer, inputs, outputs, counted))
            return outputs

        return output_spec

    # Keras's `Functional.compute_output_spec` works in the same way: it calls `compute_output_spec` of each operation.
    pairs = zip(input_shapes, model.inputs, strict=True)
    run_operations(model, [keras.KerasTensor(shape, tensor.dtype) for shape, tensor in pairs], with_cost)
    return costs


def _layer_cost(layer, inputs, outputs, counted):
    weights = [] if id(layer) in counted else layer.weights
    counted.add(id(layer))
    input_shapes = [tuple(tensor.shape) for tensor in keras.tree.flatten(inputs) if hasattr(tensor, "shape")]
    output_shape = tuple(keras.tree.flatten(outputs)[0].shape)
    parameters = sum(math.prod(weight.shape) for weight in weights)
    return LayerCost(layer.name, (None, *output_shape[1:]), parameters, _macs(layer, input_shapes, output_shape))


def _macs(layer, input_shapes, output_shape):
    if hasattr(layer, "macs"):
        # `macs` is called with as many input shapes as it has parameters, usually only with the first shape.
        return layer.macs(*input_shapes[: len(inspect.signature(layer.macs).parameters)])
    if isinstance(layer, _KERNEL_LAYERS):
        return math.prod(output_shape[1:-1]) * math.prod(layer.kernel.shape)
    if layer.weights and not isinstance(layer, _UNCOUNTED_LAYERS):
        raise TypeError(
            f"The MACs of layer {layer.name!r} ({type(layer).__name__}) are not known. Give the layer a method "
            f"macs(input_shape) that returns them for one image. If the layer has "
            f"several inputs, the method can take several shapes."
        )
    return 0
