"""Outputs and gradients of layers and functions, on each backend, from one forward and backward pass."""

import keras
from keras import ops


def _on_tensorflow(layer, arguments, loss):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value, output = loss(layer(*arguments))
    return output, tape.gradient(value, [variable.value for variable in layer.trainable_variables])


def _on_jax(layer, arguments, loss):
    import jax

    others = [variable.value for variable in layer.non_trainable_variables]
    function = jax.value_and_grad(
        lambda values: loss(layer.stateless_call(values, others, *arguments)[0]), has_aux=True
    )
    (_, output), found = jax.jit(function)([variable.value for variable in layer.trainable_variables])
    return output, found


def _on_torch(layer, arguments, loss):
    import torch

    variables = [variable.value for variable in layer.trainable_variables]
    value, output = loss(layer(*arguments))
    # Only PyTorch refuses to differentiate without weights.
    return output, torch.autograd.grad(value, variables, allow_unused=True) if variables else []


DIFFERENTIATE = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}
"""{backend: function (layer, arguments, loss) that returns the output and the gradients of the trainable weights}"""


def compiled(function, **options):
    """A compiled function. Options are those of `tf.function`."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, autograph=False, **options)


def value_and_gradients(function, *arrays):
    """The value of a function of arrays, compiled, and the gradients of its sum with respect to the arrays."""
    if keras.backend.backend() == "jax":
        import jax

        def differentiate(*values):
            value, pull_back = jax.vjp(function, *values)
            return value, pull_back(ops.ones_like(value))
    else:
        import tensorflow as tf

        def differentiate(*values):
            with tf.GradientTape() as tape:
                tape.watch(values)
                value = function(*values)
            return value, tape.gradient(value, values)

    value, found = compiled(differentiate)(*map(ops.convert_to_tensor, arrays))
    return ops.convert_to_numpy(value), [ops.convert_to_numpy(each) for each in found]
