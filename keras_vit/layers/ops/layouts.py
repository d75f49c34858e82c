"""Shapes that compilers want, so that layers can be written as equations. B batch, T tokens, D hidden.

TensorFlow on CPUs has a kernel for the product of two matrices, the bias and the GELU behind it. So tokens are
multiplied as rows, (B T, D). Within `textbook_operations` they keep their shape.
"""

import math

from keras import ops

from keras_vit.layers.ops.textbook import textbook_multiply


def as_rows(tokens):
    """(B, ..., D) as (B ..., D)."""
    return tokens if textbook_multiply() else ops.reshape(tokens, (-1, tokens.shape[-1]))


def as_tokens(rows, tokens):
    """(B ..., D) in the shape of `tokens`."""
    return rows if textbook_multiply() else reshape_like(rows, tokens, 1, tokens.shape[-1:])


def fork(tokens):
    """Tokens (B, ..., D) twice: for the residual connection that `add` ends, and for its branch.

    Residual connections are added as rows. Otherwise XLA on CPUs computes the gradient of one again in every block,
    from those of all later branches (docs/decisions/0018).
    """
    rows = as_rows(tokens)
    return rows, as_tokens(rows, tokens)


def add(residual, branch):
    """`tokens + branch`, (B, ..., D), with the tokens of a residual connection from `fork`."""
    return as_tokens(residual + as_rows(branch), branch)


def apply_dense(layer, rows):
    """The outputs of a `Dense` layer for the rows of `as_rows`."""
    multiply = textbook_multiply()
    if multiply is None or layer.quantization_mode is not None:
        return layer(rows)
    kernel, bias = (ops.cast(weight, layer.compute_dtype) for weight in (layer.kernel, layer.bias))
    return multiply(ops.cast(rows, layer.compute_dtype), kernel) + bias


def apply_einsum_dense(layer, inputs, num_axes, scale=None):
    """The outputs of an `EinsumDense` layer over the last axes of its inputs, as the product of two matrices.

    An einsum would be a batch of products of one matrix each. A layer that Keras has quantized computes as Keras does.

    Args:
        layer: An `EinsumDense` with a bias.
        inputs: (B, ..., the axes of the kernel).
        num_axes: How many axes of the inputs the kernel is multiplied with.
        scale: Factor of the outputs; `None`: 1.
    """
    if layer.quantization_mode is not None:
        outputs = layer(inputs)
        return outputs if scale is None else outputs * scale
    kernel, bias = (ops.cast(weight, layer.compute_dtype) for weight in (layer.kernel, layer.bias))
    outer_shape = kernel.shape[num_axes:]
    inner, multiply = math.prod(kernel.shape[:num_axes]), textbook_multiply()
    values = ops.cast(inputs, layer.compute_dtype)
    rows = reshape_like(values, inputs, num_axes, (inner,)) if multiply else ops.reshape(values, (-1, inner))
    kernel, bias = ops.reshape(kernel, (inner, -1)), ops.reshape(bias, (-1,))
    if scale is not None:  # The weights are smaller than the outputs of all tokens.
        kernel, bias = kernel * scale, bias * scale
    products = multiply(rows, kernel) if multiply else ops.matmul(rows, kernel)
    outputs = ops.add(products, bias)  # TensorFlow joins ops.add to the product, but not `+`.
    return reshape_like(outputs, inputs, num_axes, outer_shape)


def reshape_like(values, inputs, num_axes, outer_shape):
    """Values in the shape of `inputs`, with `outer_shape` in place of its last `num_axes` axes.

    The sizes are numbers, with one -1, if at most one is unknown: sizes that are computed from a shape add operations
    to an exported file.
    """
    known = [-1 if size is None else size for size in (*inputs.shape[:-num_axes], *outer_shape)]
    is_enough = known.count(-1) <= 1
    return ops.reshape(values, known if is_enough else (*ops.shape(inputs)[:-num_axes], *outer_shape))
