"""Writes weights into a model: either all of them or none."""

import contextlib
import functools
import itertools
import re

import keras
import numpy as np
from keras import ops

from keras_vit.checks import nearest_names
from keras_vit.preprocessing import vision_model

_OWN_LAYERS = re.compile(
    r"stem_.*|patch_embedding|class_token|distillation_token|register_tokens|position_embedding(?:_\d+)?"
    r"|pre_norm"
    r"|encoder_block_\d+|encoder_norm|pooling|pooled_norm|pre_logits|predictions|distillation_predictions"
    r"|stage_\d+_(?:global_)?unit_\d+|final_norm|(?:tokenizer|token_relation|token_projector)_\d+"
    r"|(?:lateral|pyramid|token_embedding|head)_.*|token_transformer"
)

# The most names that are compared to find the nearest.
_MOST_COMPARED = 500


def is_own_layer(name):
    """Whether a name belongs to a layer of this package's models that has weights, or to one beside the classifier."""
    beside = ("distillation_pooling", "dropout", "mean_logits", "probabilities")
    return bool(_OWN_LAYERS.fullmatch(name)) or name in beside


def canonical_variables(model):
    """{canonical path: variable} of a model of this package, which may be nested in another.

    A canonical path is a layer's name and the variable's path inside that layer. Layers outside of the model of this
    package are left out.
    """
    variables = {}
    for layer in filter(lambda layer: _OWN_LAYERS.fullmatch(layer.name), vision_model(model).layers):
        for variable in layer.weights:
            folders = variable.path.split("/")
            variables["/".join(folders[folders.index(layer.name) :])] = variable
    return variables


def canonical_arrays(model):
    """{canonical path: float32 array} of a model of this package."""
    return {
        path: np.asarray(ops.convert_to_numpy(ops.cast(variable.value, "float32")))
        for path, variable in canonical_variables(model).items()
    }


def check(weights, variables, dtypes):
    """Checks that weights are exactly those of a model.

    Args:
        weights: {canonical path: array}
        variables: {canonical path: variable}
        dtypes: {name of a layer: types of its weights and of its computations}

    Raises:
        ValueError: If an array is missing, unknown, of another shape, not finite, or too large for its layer. The
            message lists all of them.
    """
    missing = [path for path in variables if path not in weights]
    extra = [path for path in weights if path not in variables]
    misshaped = [
        path
        for path, variable in variables.items()
        if path in weights and tuple(weights[path].shape) != tuple(variable.shape)
    ]
    lines = itertools.chain(
        (f"missing: {path} {tuple(variables[path].shape)}{_near(path, extra)}" for path in missing),
        (f"not in the model: {path} {weights[path].shape}{_near(path, missing)}" for path in extra),
        (
            f"of another shape: {path} is {weights[path].shape} in the file and {tuple(variables[path].shape)} in the "
            f"model"
            for path in misshaped
        ),
    )
    if number := len(missing) + len(extra) + len(misshaped):
        raise ValueError("The weights do not fit the model:\n" + _shortened(lines, number))
    extremes = {path: np.array([array.min(), array.max()]) for path, array in weights.items()}
    broken = [path for path, values in extremes.items() if not np.isfinite(values).all()]
    if broken:
        raise ValueError(f"Weights hold NaN or infinite values: {', '.join(broken[:8])}. The file is damaged.")
    large = _too_large(extremes, dtypes)
    if large:
        raise ValueError(
            f"Weights become infinite in the precision of the model: {', '.join(large[:8])}. Set another one with "
            f"keras.config.set_dtype_policy before the model is built."
        )


def assign(weights, variables):
    """Moves `weights` into `variables`. Arguments as in `check`, which must have passed."""
    for path, variable in variables.items():
        variable.assign(np.ascontiguousarray(weights.pop(path)))


@contextlib.contextmanager
def in_place_of_initial_values():
    """Context in which models are built without initial values. It yields a function like `assign`, which sets them.

    Initial values that would be replaced are not drawn, and no weight is in memory twice.
    """
    waiting = []

    def assign_later(weights, variables):
        for path, variable in variables.items():
            # Keras calls a variable's initializer when the scope ends. It has no public way to set one.
            variable._initializer = functools.partial(_pop, weights, path)
        waiting.append((weights, variables))

    with keras.StatelessScope():
        yield assign_later
    for weights, variables in waiting:  # If a version of Keras does not call the initializers.
        assign(weights, {path: variables[path] for path in weights})


def leave_empty(variables):
    """Makes the variables of a refused model empty: Keras will initialise them nevertheless."""
    for variable in variables:
        variable._initializer = _empty


def _empty(shape, dtype):
    return ops.zeros((0,), dtype)


def _pop(weights, path, shape, dtype):
    """An initializer. The array is contiguous: torch would keep the strides of a transposed one, and be slower."""
    return ops.convert_to_tensor(np.ascontiguousarray(weights.pop(path)), dtype)


def _too_large(extremes, dtypes):
    """Paths of the weights that become infinite, each with the type. Arguments as in `check`."""
    large = []
    for dtype in sorted(set().union(*dtypes.values())):
        paths = [path for path in extremes if dtype in dtypes[path.split("/")[0]]]
        if paths:
            values = ops.cast(np.stack([extremes[path] for path in paths]), dtype)
            fit = ops.convert_to_numpy(ops.all(ops.isfinite(values), axis=1))
            large += [f"{path} in {dtype}" for path in np.array(paths)[~fit]]
    return large


def _near(path, candidates):
    near = nearest_names(path, candidates[:_MOST_COMPARED], count=1, cutoff=0.7)
    return f" (near: {near[0]})" if near else ""


def _shortened(lines, number, limit=20):
    """The first lines of an iterator. It makes them one by one, because the search for near names takes long."""
    return "\n".join(f"  {line}" for line in itertools.islice(lines, limit)) + (
        f"\n  and {number - limit} more" if number > limit else ""
    )
