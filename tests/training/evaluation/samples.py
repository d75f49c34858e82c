"""Evaluates a model on samples that are given as arrays."""

import types

import keras
import pytest
import tensorflow as tf

from training.data.dataset import Dataset
from training.data.sources import IndexedSource
from training.evaluation import outputs


def evaluate_samples(evaluate, columns, outputs_of, class_names, *arguments, **options):
    """Calls `evaluate` with a model that computes `outputs_of(images)`. `columns` are {name: array (N, ...)}."""
    tensors = {name: tf.constant(rows) for name, rows in columns.items()}
    source = IndexedSource(len(columns["image"]), lambda i: {name: rows[i] for name, rows in tensors.items()})
    images = keras.Input(columns["image"].shape[1:])
    dataset = Dataset(class_names, {"test": source}, units=("m",))
    recipe = types.SimpleNamespace(fit=types.SimpleNamespace(batch_size=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "sample_decoder", lambda model: dict)
        return evaluate(keras.Model(images, outputs_of(images)), dataset, "test", recipe, *arguments, **options)
