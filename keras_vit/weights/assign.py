"""Writes either all weights of a file into a model, or none."""

import contextlib
import functools
import itertools
import zlib

import keras
import numpy as np
from keras import ops

from keras_vit.checks import nearest_names
from keras_vit.graph import to_array
from keras_vit.preprocessing import vision_model
from keras_vit.weights.paths import WITH_WEIGHTS, layer_of

# An unknown or missing name is compared with at most this number of names, because each comparison is slow.
_MOST_COMPARED = 500


def canonical_variables(model):
    """{canonical path: variable} of a model of this package, which may be nested in another model.

    A canonical path is a layer's name and the variable's path inside that layer. Layers of an outer model are omitted.
    """
    return variables_of(layer for layer in vision_model(model).layers if WITH_WEIGHTS.fullmatch(layer.name))


def variables_of(layers):
    """{canonical path: variable} of layers."""
    variables = {}
    for layer in layers:
        for variable in layer.weights:
            folders = variable.path.split("/")
            variables["/".join(folders[folders.index(layer.name) :])] = variable
    return variables


def canonical_arrays(model):
    """{canonical path: float32 array} of a model of this package."""
    return arrays_of(canonical_variables(model))


def arrays_of(variables):
    """{path: float32 array} of {path: variable}."""
    return {path: np.asarray(to_array(variable.value)) for path, variable in variables.items()}


def checksum(weights):
    """CRC-32 of {canonical path: array}, a number that shows whether weights have changed."""
    value = 0
    for path in sorted(weights):
        value = zlib.crc32(np.ascontiguousarray(weights[path], "float32").data, value)
    return value


def check(weights, variables, dtypes):
    """Checks that weights contain all arrays of a model, and no other arrays.

    Args:
        weights: {canonical path: array}
        variables: {canonical path: variable}
        dtypes: {name of a layer: types of its weights and of its computations}

    Raises:
        ValueError: If an array is missing, unknown, of another shape, not finite, or too large for the layer's types.
            The message lists these arrays.
    """
    shapes = {path: tuple(variable.shape) for path, variable in variables.items()}
    missing = [path for path in shapes if path not in weights]
    extra = [path for path in weights if path not in shapes]
    misshaped = [path for path in shapes if path in weights and weights[path].shape != shapes[path]]
    lines = itertools.chain(
        (f"missing: {path} {shapes[path]}{_near(path, extra)}" for path in missing),
        (f"not in the model: {path} {weights[path].shape}{_near(path, missing)}" for path in extra),
        (
            f"of another shape: {path} is {weights[path].shape} in the file, {shapes[path]} in the model"
            for path in misshaped
        ),
    )
    if number := len(missing) + len(extra) + len(misshaped):
        raise ValueError("The weights do not fit the model:\n" + _shortened(lines, number))
    extremes = {path: np.array([array.min(), array.max()]) for path, array in weights.items()}
    broken = [path for path, values in extremes.items() if not np.isfinite(values).all()]
    if broken:
        raise ValueError(f"Weights contain NaN or infinite values: {', '.join(broken[:8])}. The file is damaged.")
    large = _too_large(extremes, dtypes)
    if large:
        raise ValueError(
            f"Weights become infinite in the precision of the model: {', '.join(large[:8])}. Before the model is "
            f"built, set another precision with keras.config.set_dtype_policy."
        )


def assign(weights, variables):
    """Moves each array of `weights` into its variable. Call `check` with the same arguments first."""
    for path, variable in variables.items():
        variable.assign(np.asarray(weights.pop(path), order="C"))  # Scalars remain scalars.


@contextlib.contextmanager
def in_place_of_initial_values():
    """Builds models without initial values. Yields a function to call instead of `assign`, with the same arguments.

    Random initial values would not be used, so they are not computed. Each weight is in memory only once.
    """
    waiting = []

    def assign_later(weights, variables):
        for path, variable in variables.items():
            # Keras calls this initializer when the scope ends. Keras has no public way to set it.
            variable._initializer = functools.partial(_pop, weights, path)
        waiting.append((weights, variables))

    with keras.StatelessScope():
        yield assign_later
    for weights, variables in waiting:  # Assigns the weights whose initializers Keras did not call.
        assign(weights, {path: variables[path] for path in weights})


def leave_empty(variables):
    """Replaces the initial values of variables by empty arrays.

    Keras creates initial values even if the model could not be built. Empty arrays need no memory.
    """
    for variable in variables:
        variable._initializer = lambda shape, dtype: ops.zeros((0,), dtype)


def _pop(weights, path, shape, dtype):
    """An initializer that moves an array out of `weights`.

    The array is made contiguous, because torch is slower with the strides of a transposed array.
    """
    return ops.convert_to_tensor(np.asarray(weights.pop(path), order="C"), dtype)  # Scalars remain scalars.


def _too_large(extremes, dtypes):
    """List of `"<path> in <type>"` for the weights that become infinite in a type of their layer."""
    large = []
    for dtype in sorted(set().union(*dtypes.values())):
        paths = [path for path in extremes if dtype in dtypes[layer_of(path)]]
        if paths:
            values = ops.cast(np.stack([extremes[path] for path in paths]), dtype)
            fit = ops.convert_to_numpy(ops.all(ops.isfinite(values), axis=1))
            large += [f"{path} in {dtype}" for path in np.array(paths)[~fit]]
    return large


def _near(path, candidates):
    near = nearest_names(path, candidates[:_MOST_COMPARED], count=1, cutoff=0.7)
    return f" (near: {near[0]})" if near else ""


def _shortened(lines, number, limit=20):
    """The first `limit` lines. `lines` is an iterator, because each line needs a slow search for a similar name."""
    return "\n".join(f"  {line}" for line in itertools.islice(lines, limit)) + (
        f"\n  and {number - limit} more" if number > limit else ""
    )
