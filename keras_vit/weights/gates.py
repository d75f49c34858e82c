"""The gate and the value of SwiGLU. Some projects store them apart; this package concatenates them, the gate first."""

import numpy as np

_GATE, _VALUE, _HIDDEN = "/mlp/gate/", "/mlp/value/", "/mlp/hidden/"


def join_gates(weights):
    """Replaces the gates and values in {path: array} by the concatenated weights. Returns `weights`."""
    for gate in [path for path in weights if _GATE in path]:
        value = gate.replace(_GATE, _VALUE)
        if value in weights:
            weights[gate.replace(_GATE, _HIDDEN)] = np.concatenate([weights.pop(gate), weights.pop(value)], axis=-1)
    return weights


def split_gates(weights):
    """{path: array} in which the gates and values are apart."""
    parts = dict(weights)
    for path in [path for path in weights if _HIDDEN in path]:
        gate, value = np.split(parts.pop(path), 2, axis=-1)
        parts |= {path.replace(_HIDDEN, _GATE): gate, path.replace(_HIDDEN, _VALUE): value}
    return parts
