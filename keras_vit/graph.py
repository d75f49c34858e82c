"""Runs a functional model layer by layer, so that each output can be read or replaced. B batch, H W C image."""

import keras
from keras import ops


def layer_names(model):
    """Names of the layers that `collect` looks at, also in nested models. A name that two share stands there twice."""
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
    """All layers of a model, also those inside layers and nested models. Keras has no public way to list them."""
    return model._flatten_layers(include_self=False)


def collect(model, images, look):
    """Passes images through a model, at inference, layer by layer.

    Args:
        model: A functional `keras.Model`, also with others nested in it.
        images: (B, H, W, C), as the model takes them.
        look: Called as `look(layer, arguments, output)` with each layer, in the order in which they run; of its
            arguments, those that are given by position.

    Returns:
        {layer name: what `look` returned}, without `None`; nothing else is kept.
    """
    found = {}

    def visit(layer, arguments, output):
        # Else PyTorch would keep every activation, for gradients that nobody asks for.
        output = keras.tree.map_structure(ops.stop_gradient, output)
        seen = look(layer, arguments, output)
        if seen is not None and layer.name in found:
            raise ValueError(
                f"{layer.name!r} runs more than once in {model.name!r}. Pass the model inside it, or ask for another "
                f"layer."
            )
        if seen is not None:
            found[layer.name] = seen
        return output

    run(model, images, visit)
    return found


def run(model, images, change):
    """Passes images through a model layer by layer, each output going on as `change` returns it.

    Inside a Keras model the layers train or not as it does; called by itself, they run as at inference.

    Args:
        model: A functional `keras.Model`, also with others nested in it.
        images: (B, H, W, C), as the model takes them.
        change: Called as `look` of `collect`; what it returns goes on in place of the output.

    Returns:
        The model's output.
    """
    function = as_functional(model)
    return _run(function, _check_images(function, images), change)


def to_array(tensor):
    """A float32 NumPy array, which every function of NumPy takes, whatever the precision policy."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def _run(function, inputs, change):
    def changed(operation):
        def call(*arguments, **options):
            if _is_functional(operation):
                # Its own options, such as training=False, say nothing here.
                output = _run(as_functional(operation), arguments[0], change)
            else:
                output = operation(*arguments, **options)
            return change(operation, arguments, output)

        return call

    return run_operations(function, inputs, changed)


def run_operations(function, inputs, call_of):
    """Runs a model's own graph, as Keras's `Functional.call` does, with other functions in place of its operations.

    Models made of `layer.output` would not do: a nested model's layers belong to another graph, and so do those that
    are called more than once.

    Args:
        function: A functional `keras.Model`.
        inputs: What goes into it.
        call_of: Function from an operation of the graph to what is called in its place.

    Returns:
        The model's output.
    """
    outputs = function._run_through_graph(inputs, operation_fn=call_of)
    return outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs


def calls(function):
    """Each call of an operation in a model's graph, a `keras.Node`. Keras has no public way to list them."""
    return [node for nodes in function._nodes_by_depth.values() for node in nodes]


def as_inputs(function, inputs):
    """What a model is called with, as its graph takes it: tensors of the dtypes of its inputs."""
    return function._standardize_inputs(inputs)


def _is_functional(layer):
    return isinstance(layer, keras.Model) and (hasattr(layer, "operations") or isinstance(layer, keras.Sequential))


def as_functional(model):
    """The model as one whose graph can be run; raises a TypeError if there is no graph."""
    if isinstance(model, keras.Sequential) and model.built:
        return keras.Model(model.inputs[0], model.outputs[0])
    if not isinstance(model, keras.Model) or not hasattr(model, "operations"):
        raise TypeError(
            f"A functional keras.Model is needed, which can be run layer by layer. Received: {model!r}. Pass the model "
            f"of keras_vit that is inside it."
        )
    return model


def _check_images(function, images):
    if len(function.inputs) != 1:
        raise ValueError(
            f"A model of one input is needed, its images; {function.name!r} has {len(function.inputs)}. Pass the model "
            f"of keras_vit that is inside it."
        )
    [expected] = function.inputs
    images = ops.convert_to_tensor(images, expected.dtype)
    sizes = zip(images.shape, expected.shape, strict=False)
    if len(images.shape) != len(expected.shape) or any(
        None not in (actual, size) and actual != size for actual, size in sizes
    ):
        raise ValueError(
            f"The model takes images of shape {tuple(expected.shape)}, where None is any size. Received: images of "
            f"shape {tuple(images.shape)}"
        )
    return images
