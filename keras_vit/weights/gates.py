"""Gates and values of SwiGLU: the weight `mlp/hidden` contains both, but some files have separate arrays.

A table of names gives the separate arrays the canonical paths `mlp/gate` and `mlp/value`.
"""

import numpy as np


def join_gates(weights):
    """Joins `mlp/gate` and `mlp/value` to `mlp/hidden` in {canonical path: array}. Returns the same dictionary."""
    for gate in [path for path in weights if "/mlp/gate/" in path]:
        value, hidden = gate.replace("gate", "value"), gate.replace("gate", "hidden")
        if value in weights and hidden not in weights:  # If not, the weights do not fit any model.
            weights[hidden] = np.concatenate([weights.pop(gate), weights.pop(value)], axis=-1)
    return weights


def split_gates(weights):
    """Inverse of `join_gates`. Returns a new dictionary."""
    separate = {}
    for path, array in weights.items():
        if "/mlp/hidden/" in path:
            gate, value = np.split(array, 2, axis=-1)
            separate |= {path.replace("hidden", "gate"): gate, path.replace("hidden", "value"): value}
        else:
            separate[path] = array
    return separate
