"""Reshapes arrays to shapes for which compilers produce fast code. Shapes: B batch, T tokens, D hidden.

TensorFlow on CPUs can fuse a product of two matrices, a bias and a GELU into one kernel. Tokens are therefore reshaped
to rows, (B T, D), before the product. Inside `exportable_operations`, tokens keep their shape.
"""

import math

from keras import ops

from keras_vit.layers.ops.exportable import exportable_multiply


def as_rows(tokens):
    """Reshapes (B, ..., D) to (B ..., D)."""
    return tokens if exportable_multiply() else ops.reshape(tokens, (-1, tokens.shape[-1]))


def as_tokens(rows, tokens):
    """Reshapes (B ..., D) to the shape of `tokens`."""
    return rows if exportable_multiply() else reshape_like(rows, tokens, 1, tokens.shape[-1:])


def residual_and_branch(tokens):
    """Returns tokens (B, ..., D) twice: as rows for the residual connection (see `add`), and as tokens for the branch.

    The sum of residual connection and branch is computed on rows. If the sum were computed on tokens, XLA on CPUs would
    recompute the gradient of the sum in every block, from the gradients of all later branches (docs/decisions/0018).
    """
    rows = as_rows(tokens)
    return rows, as_tokens(rows, tokens)


def add(residual, branch):
    """Adds a branch (B, ..., D) to the rows that `residual_and_branch` returned. Returns (B, ..., D)."""
    return as_tokens(residual + as_rows(branch), branch)


def apply_dense(layer, rows):
    """Applies a `Dense` layer to rows from `as_rows`."""
    multiply = exportable_multiply()
    if multiply is None or layer.quantization_mode is not None:
        return layer(rows)
    kernel, bias = (ops.cast(weight, layer.compute_dtype) for weight in (layer.kernel, layer.bias))
    return multiply(ops.cast(rows, layer.compute_dtype), kernel) + bias


def apply_einsum_dense(layer, inputs, num_axes, scale=None):
    """Applies an `EinsumDense` layer to the last axes of its inputs as one product of two matrices.

    `einsum` would compute a batch of smaller products. A layer that Keras has quantized is called directly.

    Args:
        layer: An `EinsumDense`, with or without a bias.
        inputs: (B, ..., input axes of the kernel).
        num_axes: Number of input axes of the kernel.
        scale: Factor by which the outputs are multiplied. `None`: 1.
    """
    if layer.quantization_mode is not None:
        outputs = layer(inputs)
        return outputs if scale is None else outputs * scale
    kernel = ops.cast(layer.kernel, layer.compute_dtype)
    output_axes = kernel.shape[num_axes:]
    inner, multiply = math.prod(kernel.shape[:num_axes]), exportable_multiply()
    values = ops.cast(inputs, layer.compute_dtype)
    rows = reshape_like(values, inputs, num_axes, (inner,)) if multiply else ops.reshape(values, (-1, inner))
    kernel = _scaled(ops.reshape(kernel, (inner, -1)), scale)
    outputs = multiply(rows, kernel) if multiply else ops.matmul(rows, kernel)
    if layer.bias is not None:
        bias = _scaled(ops.reshape(ops.cast(layer.bias, layer.compute_dtype), (-1,)), scale)
        outputs = ops.add(outputs, bias)  # TensorFlow fuses ops.add with the product, but not `+`.
    return reshape_like(outputs, inputs, num_axes, output_axes)


def _scaled(weight, scale):
    """Scales a weight. There are fewer weights than outputs, so this is faster than scaling the outputs."""
    return weight if scale is None else weight * scale


def reshape_like(values, inputs, num_axes, new_axes):
    """Reshapes values to the shape of `inputs`, except that `new_axes` replaces the last `num_axes` sizes.

    If at most one size is unknown, `ops.reshape` gets a static shape of integers, with -1 for the unknown size. This
    avoids shape operations in exported files.
    """
    static_shape = [-1 if size is None else size for size in (*inputs.shape[:-num_axes], *new_axes)]
    if static_shape.count(-1) <= 1:
        return ops.reshape(values, static_shape)
    return ops.reshape(values, (*ops.shape(inputs)[:-num_axes], *new_axes))


def gather_rows(values, indices):
    """Returns the rows (B, n, ...) of values (B, T, ...) at indices (B, n)."""
    # One gather reads the rows of all images. In TensorFlow, take_along_axis would gather single numbers, not rows.
    batch, num_rows, *row_shape = ops.shape(values)
    offsets = ops.arange(batch, dtype=indices.dtype)[:, None] * num_rows
    return ops.take(ops.reshape(values, (-1, *row_shape)), indices + offsets, axis=0)
