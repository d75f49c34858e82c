"""Rotation of queries and keys by angles that depend on the position ("RoFormer", arXiv 2104.09864).

Shapes: B batch, K heads, T tokens, Dh channels of a head. Each head has Dh / 2 pairs of channels.
"""

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.ops.exportable import exportable_multiply
from keras_vit.layers.ops.layouts import reshape_like


def check_key_dim(key_dim):
    """Returns the number of channels of a head. Raises a ValueError unless it is a positive multiple of 4."""
    key_dim = check_positive_integer("key_dim", key_dim)
    if key_dim % 4:
        raise ValueError(f"key_dim must be a multiple of 4. Received: key_dim={key_dim}")
    return key_dim


def axial_frequencies(base, key_dim):
    """The frequencies `base ** (-4 j / Dh)` of the pairs of one axis, float32 (Dh / 4,)."""
    exponents = ops.arange(key_dim // 4, dtype="float32") * (4 / key_dim)
    return ops.power(ops.cast(base, "float32"), -exponents)


def rotation(angles, layout):
    """Returns the factors with which `rotate` rotates pairs of channels.

    Args:
        angles: (..., T, Dh / 2), the angle of each pair in radians, float32.
        layout: `"half"` or `"interleaved"`, the channels of a pair, as in `keras_vit.RotaryConfig`.

    Returns:
        (2, ..., T, Dh): the cosines, and the sines with the sign that they have in `rotate`.
    """
    cosines, sines = ops.cos(angles), ops.sin(angles)
    return ops.stack([_join(cosines, cosines, layout), _join(-sines, sines, layout)])


def rotate(values, factors, layout):
    """Rotates each pair of channels (a, b) to `(a cos - b sin, b cos + a sin)`, in float32.

    On TensorFlow, the channels of interleaved pairs are exchanged by a matrix product. Devices that round the factors
    of matrix products round the queries and keys in this product, as they do in the products of the attention.

    Args:
        values: (B, K, T, Dh), queries or keys.
        factors: (2, T, Dh) or (2, K, T, Dh), from `rotation`.
        layout: As in `rotation`.

    Returns:
        Same shape and type as `values`.
    """
    cosines, sines = factors[0], factors[1]
    exact = ops.cast(values, "float32")
    return ops.cast(exact * cosines + _swapped(exact, layout) * sines, values.dtype)


def _join(first, second, layout):
    """Joins the first and the second channel of each pair, (..., Dh / 2) each, to (..., Dh)."""
    if layout == "half":
        return ops.concatenate([first, second], axis=-1)
    return reshape_like(ops.stack([first, second], axis=-1), first, 1, (2 * first.shape[-1],))


def _swapped(values, layout):
    """Exchanges the two channels of each pair."""
    if layout == "half":
        first, second = ops.split(values, 2, axis=-1)
        return ops.concatenate([second, first], axis=-1)
    num_pairs, multiply = values.shape[-1] // 2, exportable_multiply()
    if multiply or keras.backend.backend() == "tensorflow":
        # In ONNX Runtime, in OpenVINO and in TensorFlow on CPUs, a product with this matrix is faster than `flip`.
        permutation = np.kron(np.eye(num_pairs), [[0, 1], [1, 0]]).astype("float32")
        return (multiply or ops.matmul)(values, permutation)
    pairs = reshape_like(values, values, 1, (num_pairs, 2))
    return reshape_like(ops.flip(pairs, axis=-1), values, 1, values.shape[-1:])
