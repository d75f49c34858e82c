"""Fine-tuning pays: from one half of the digits' classes to the other."""

import statistics

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.training.fitting import fitted
from training.assignments import override
from training.data import Dataset, load_dataset
from training.evaluate import evaluate
from training.sources import IndexedSource

SEEDS = (0, 1, 2)
NUM_IMAGES, STEPS = 100, 40  # Few enough that what was learned before tells.


def half(dataset, first, limit=None):
    """The data set of the five classes from `first` on, with at most `limit` training images."""
    splits = {}
    for name, source in dataset.splits.items():
        examples = [e for e in source.in_order().as_numpy_iterator() if first <= e["label"] < first + 5]
        examples = examples[:limit] if name == "train" else examples
        images = tf.constant([example["image"] for example in examples])
        labels = tf.constant([example["label"] - first for example in examples])
        splits[name] = IndexedSource(len(examples), _reader(images, labels))
    return Dataset(dataset.class_names[first : first + 5], splits)


def _reader(images, labels):
    return lambda index: {"image": images[index], "label": labels[index]}


@pytest.mark.slow
def test_fine_tuning_beats_training_from_scratch_at_equal_steps(brief_recipe, tmp_path):
    wider = ["model.config.hidden_dim=32", "model.config.mlp_dim=64", "model.config.num_layers=2"]
    recipe = override(brief_recipe, [*wider, "fit.epochs=40"])
    dataset = load_dataset(recipe.data)
    model = fitted(recipe, half(dataset, first=0)).model
    path = tmp_path / "first_half.npz"
    keras_vit.save_weights(model, path, "google")

    target = half(dataset, first=5, limit=NUM_IMAGES)
    fine_tuned = ["model.config=none", f"model.weights={path}", "model.changes.num_heads=4", "model.input_shape=8,8,1"]
    accuracies = {"scratch": [], "fine-tuned": []}
    for seed in SEEDS:
        same = [f"seed={seed}", f"fit.steps={STEPS}", "fit.epochs=none", "fit.batch_size=20"]
        same += ["optimizer.learning_rate=0.005"]
        for name, assignments in {"scratch": [], "fine-tuned": fine_tuned}.items():
            changed = override(recipe, [*same, *assignments])
            accuracies[name].append(evaluate(fitted(changed, target).model, target, "test", changed).accuracy)
    assert statistics.mean(accuracies["fine-tuned"]) > statistics.mean(accuracies["scratch"]) + 0.05
    assert np.greater(accuracies["fine-tuned"], accuracies["scratch"]).all()
