"""Pre-training on one half of the digits' classes improves fine-tuning on the other half."""

import statistics

import numpy as np
import pytest
from keras import ops

import keras_vit
from tests.training.fitting import array_pipeline, digits, fitted
from training.data.dataset import Dataset
from training.data.sources import IndexedSource
from training.recipe.assignments import override

SEEDS = (0, 1, 2)
NUM_IMAGES, STEPS = 100, 40  # With so few images, pre-training makes a difference.
NUM_TEST = 180


def half(first, limit=None):
    """The images of five classes from `first` on, with at most `limit` training images."""
    images, labels = digits()
    chosen = (labels.argmax(1) >= first) & (labels.argmax(1) < first + 5)
    images, labels = images[chosen], labels[chosen][:, first : first + 5]
    train = (images[NUM_TEST:][:limit], labels[NUM_TEST:][:limit])
    return {"train": train, "validation": (images[:NUM_TEST], labels[:NUM_TEST])}


def fitted_to(arrays, recipe):
    """The fitted model and its validation accuracy."""
    sources = {split: IndexedSource(len(images), read=None) for split, (images, _) in arrays.items()}
    with array_pipeline(arrays):
        model = fitted(recipe, Dataset(tuple("abcde"), sources)).model
    images, labels = arrays["validation"]
    return model, (ops.convert_to_numpy(model(images)).argmax(1) == labels.argmax(1)).mean()


@pytest.mark.slow
def test_fine_tuning_beats_training_from_scratch_at_equal_steps(brief_recipe, tmp_path):
    wider = ["model.config.hidden_dim=32", "model.config.mlp_dim=64", "model.config.num_layers=2"]
    recipe = override(brief_recipe, [*wider, "fit.epochs=40"])
    model, _ = fitted_to(half(first=0), recipe)
    path = tmp_path / "first_half.npz"
    keras_vit.save_weights(model, path, "google")

    target = half(first=5, limit=NUM_IMAGES)
    fine_tuned = ["model.config=none", f"model.weights={path}", "model.changes.num_heads=4", "model.input_shape=8,8,1"]
    accuracies = {"scratch": [], "fine-tuned": []}
    for seed in SEEDS:
        same = [f"seed={seed}", f"fit.steps={STEPS}", "fit.epochs=none", "fit.batch_size=20"]
        same += ["optimizer.learning_rate=0.005"]
        for name, assignments in {"scratch": [], "fine-tuned": fine_tuned}.items():
            accuracies[name].append(fitted_to(target, override(recipe, [*same, *assignments]))[1])
    assert statistics.mean(accuracies["fine-tuned"]) > statistics.mean(accuracies["scratch"]) + 0.05
    assert np.greater(accuracies["fine-tuned"], accuracies["scratch"]).all()
