"""Runs a functional model layer by layer, so that each output can be read or replaced. Shapes: B batch, H W C image."""

import keras
import numpy as np
from keras import ops

from keras_vit.checks import shown


def layer_names(model):
    """Names of the layers that `collect` visits, also in nested models. A name that n layers share occurs n times."""
    names = []
    for layer in as_functional(model).layers:
        if not isinstance(layer, keras.layers.InputLayer):
            names.append(layer.name)
        if _is_functional(layer):
            names.extend(layer_names(layer))
    return names


def is_quantized(model):
    """Whether Keras has quantized a layer of a model (`keras.Model.quantize`)."""
    return any(layer.quantization_mode is not None for layer in all_layers(model))


def all_layers(model):
    """All layers of a model, including layers inside layers and nested models. Keras has no public list of them."""
    return model._flatten_layers(include_self=False)


def leaves(model):
    """The layers of a model, with the layers of nested models in their places."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from leaves(layer)
        else:
            yield layer


def collect(model, images, inspect_layer):
    """Runs a model on images in inference mode and collects a value from each layer.

    Args:
        model: A functional `keras.Model`, which may contain nested models.
        images: (B, H, W, C), as the model expects them.
        inspect_layer: Function `inspect_layer(layer, arguments, output)` that returns the value to collect from a
            layer, or `None`. It is called for each layer, in the order of execution. `arguments` are the layer's
            positional arguments.

    Returns:
        {layer name: value that `inspect_layer` returned}. Layers with the value `None` are left out.
    """
    values = {}

    def visit(layer, arguments, output):
        # Without `stop_gradient`, PyTorch would keep every activation in memory for gradients that are not used.
        output = keras.tree.map_structure(ops.stop_gradient, output)
        value = inspect_layer(layer, arguments, output)
        if value is not None and layer.name in values:
            raise ValueError(
                f"{layer.name!r} runs more than once in {model.name!r}. Pass the nested model, or choose another layer."
            )
        if value is not None:
            values[layer.name] = value
        return output

    run(model, images, visit)
    return values


def run(model, images, change):
    """Runs a model on images layer by layer and replaces each output with the value that `change` returns.

    If `run` is called inside the `call` of a Keras model, the layers use that model's value of `training`. Otherwise
    they run in inference mode.

    Args:
        model: A functional `keras.Model`, which may contain nested models.
        images: (B, H, W, C), as the model expects them.
        change: Function `change(layer, arguments, output)` that returns the new output of a layer. It is called like
            `inspect_layer` in `collect`.

    Returns:
        The model's output.
    """
    function = as_functional(model)
    return _run(function, _check_images(function, images), change)


def to_array(tensor):
    """Converts a tensor to a float32 NumPy array, whatever the precision policy."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def _run(function, inputs, change):
    def with_change(operation):
        def call(*arguments, **options):
            if _is_functional(operation):
                # The layers of the nested model do not get the options of this call, such as training=False.
                output = _run(as_functional(operation), arguments[0], change)
            else:
                output = operation(*arguments, **options)
            return change(operation, arguments, output)

        return call

    return run_operations(function, inputs, with_change)


def run_operations(function, inputs, call_of):
    """Runs a model's graph like Keras's `Functional.call`, but calls another function in place of each operation.

    To read the output of one layer, `keras.Model(inputs, layer.output)` would be simpler. But it fails if the layer is
    in a nested model or is called more than once, because `layer.output` then belongs to another graph.

    Args:
        function: A functional `keras.Model`.
        inputs: The model's inputs.
        call_of: Function `call_of(operation)` that returns the function to call in place of an operation.

    Returns:
        The model's output.
    """
    outputs = function._run_through_graph(inputs, operation_fn=call_of)
    return outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs


def calls(function):
    """All calls of operations in a model's graph, as `keras.Node` objects. Keras has no public list of them."""
    return [node for nodes in function._nodes_by_depth.values() for node in nodes]


def as_inputs(function, inputs):
    """Converts inputs to tensors with the dtypes of the model's inputs."""
    return function._standardize_inputs(inputs)


def _is_functional(layer):
    return isinstance(layer, keras.Model) and (hasattr(layer, "operations") or isinstance(layer, keras.Sequential))


def has_graph(model):
    """Whether the layers of a model form a graph: a functional model, or a Sequential model that is built."""
    return isinstance(model, keras.Model) and (
        model.built if isinstance(model, keras.Sequential) else hasattr(model, "operations")
    )


def as_functional(model):
    """Returns the model, or a functional copy of a Sequential model. Raises a TypeError for other models."""
    if not has_graph(model):
        raise TypeError(
            f"A functional keras.Model is needed, so that it can be run layer by layer. Received: {model!r}. Pass the "
            f"model of keras_vit that is inside it."
        )
    return keras.Model(model.inputs[0], model.outputs[0]) if isinstance(model, keras.Sequential) else model


def fits(shape, expected):
    """Whether a shape is the expected one. `None` means any size, in both."""
    sizes = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(None in pair or pair[0] == pair[1] for pair in sizes)


def check_images(images, expected):
    """Returns images as an array, or the tensor that was given.

    Args:
        images: Array or tensor (B, H, W, C), or list of arrays.
        expected: Shape of the model's input.

    Raises:
        ValueError: If `images` are no numbers, or have another shape.
    """
    given = images
    if not hasattr(images, "shape"):
        try:
            images = np.asarray(images)
        except ValueError as error:
            shapes = ", ".join(map(str, sorted({getattr(image, "shape", "unknown") for image in images}, key=str)))
            raise ValueError(
                f"All images must have the size of the model. Received: images of the shapes {shapes}. Resize them."
            ) from error
    if isinstance(images, np.ndarray) and images.dtype.kind in "OSUc":
        raise ValueError(
            f"Images must be arrays of pixels, such as np.array(keras.utils.load_img(path)). Received: {shown(given)}"
        )
    if not fits(images.shape, expected):
        one = " For one image, pass image[None]." if fits((1, *images.shape), expected) else ""
        raise ValueError(
            f"The model takes images of shape {tuple(expected)}, where None means any size. Received: images of shape "
            f"{tuple(images.shape)}.{one}"
        )
    return images


def _check_images(function, images):
    if len(function.inputs) != 1:
        raise ValueError(
            f"A model with one input, the images, is needed. {function.name!r} has {len(function.inputs)} inputs. Pass "
            f"the model of keras_vit that is inside it."
        )
    [expected] = function.inputs
    return ops.convert_to_tensor(check_images(images, expected.shape), expected.dtype)
