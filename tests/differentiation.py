"""Output and gradients of a layer, on each backend, from one forward and backward pass."""


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
