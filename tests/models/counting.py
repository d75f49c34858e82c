"""Counts of deep models, computed from shallow ones: all units of a stage but the first are alike."""

import collections
import math
import re

import numpy as np

import keras_vit
from tests.test_case import without_values


def shapes_only(build):
    """A model without values, and its cost."""
    with without_values():
        model = build()
        return model, keras_vit.profile(model)


def count_trained(model):
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


def counts_by_layer(model, cost, weights=None):
    """{layer name: array of (number of weights, MACs)}

    Args:
        model: A model.
        cost: Cost of the model.
        weights: Weights to count. Default: the trained weights.
    """
    counts = collections.defaultdict(lambda: np.zeros(2, "int64"))
    for layer in cost.layers:
        counts[layer.name] += [0, layer.macs]
    for weight in model.trainable_weights if weights is None else weights:
        counts[weight.path.split("/")[0]] += [math.prod(weight.shape), 0]
    return dict(counts)


def deep_counts(by_layer, stage_depths, num_global_units=()):
    """(number of weights, MACs) of a model with these depths.

    Args:
        by_layer: Counts of a model with two units and at most one global unit in each stage.
        stage_depths: Number of units in each stage.
        num_global_units: Number of global units in each stage.
    """
    total = np.zeros(2, "int64")
    for name, counts in by_layer.items():
        is_of_stage = re.fullmatch(r"stage_(\d)_(global_)?unit_(\d)", name)
        times = 1
        if is_of_stage:
            stage, is_global, unit = is_of_stage.groups()
            later = num_global_units[int(stage)] if is_global else stage_depths[int(stage)] - 1
            times = later if is_global or unit == "1" else 1
        total += times * counts
    return tuple(map(int, total))
