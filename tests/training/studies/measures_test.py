"""What studies measure in trained models, and the figures of it."""

import dataclasses
import math
import types

import numpy as np
import pytest

import keras_vit
from tests.models.tiny import SHAPE, tiny_model
from tests.test_case import random_inputs, randomize
from tests.training.studies.figures_test import bars_of
from tests.training.studies.results_test import row
from training import recipes
from training.data.loading import load_dataset
from training.data.subsets import read_labels
from training.recipe.assignments import override
from training.studies import measures, papers
from training.studies.papers import pretraining_size
from training.studies.results import summaries


def test_predictions_that_stay_the_same():
    """The class is the colour of one pixel, so a shift changes it if the shifted pixel has another colour."""
    images = np.random.default_rng(0).integers(0, 3, (50, 32, 48, 1))
    model = types.SimpleNamespace(predict=lambda images, **_: np.eye(3)[images[:, 16, 20, 0]])
    found = measures._shift_measures(model, images)
    for shift, name in measures.SHIFT_NAMES.items():
        moved = [images[:, 16 + y, 20 + x, 0] for y, x in ((shift, 0), (-shift, 0), (0, shift), (0, -shift))]
        assert found[name] == pytest.approx(np.mean([each == images[:, 16, 20, 0] for each in moved]))
    # Images of twice the size are shifted by twice as many pixels.
    large = np.kron(images, np.ones((1, 2, 2, 1), int))
    model = types.SimpleNamespace(predict=lambda images, **_: np.eye(3)[images[:, 32, 40, 0]])
    assert measures._shift_measures(model, large) == pytest.approx(found)


def test_distances_of_the_blocks():
    model = randomize(tiny_model(num_layers=2))
    images = random_inputs(SHAPE)[0]
    found = list(measures._distance_measures(model, images).values())
    expected = keras_vit.mean_attention_distance(model, images).mean(axis=1) / SHAPE[0]
    assert found[:2] == pytest.approx(expected.tolist())
    assert all(map(math.isnan, found[2:]))
    without = types.SimpleNamespace(layers=[], predict=None)
    assert all(map(math.isnan, measures._distance_measures(without, images).values()))


@pytest.mark.slow
def test_few_shots_are_of_the_other_classes(monkeypatch, tfds_directory):
    recipe = override(
        recipes.load("digits"),
        [f"data.tfds_directory={tfds_directory}", "data.classes=0,2,4,6,8", "data.train_images=100"],
    )
    read = {}

    def accuracies(train, labels, test, test_labels, shots, seeds):
        read.update(train=(train, labels), test=(test, test_labels))
        return {count: np.array([count / 100 + seed for seed in seeds]) for count in shots}

    monkeypatch.setattr(pretraining_size, "fewshot_accuracy", accuracies)
    monkeypatch.setattr(pretraining_size, "features", lambda model, source, recipe: source.size)
    monkeypatch.setattr(pretraining_size, "features_of_some", lambda model, source, recipe, needed: source.size)
    assert pretraining_size.measure(None, recipe) == pytest.approx({"5-shot": 4.55, "25-shot": 4.75})
    whole = load_dataset(dataclasses.replace(recipe.data, classes=None, train_images=None))
    for split, (size, labels) in read.items():
        known = read_labels(whole.source(split), split)
        np.testing.assert_array_equal(labels, known[known % 2 == 1] // 2)
        assert size == len(labels)


@pytest.mark.parametrize("name", ["translation", "attention_distance"])
def test_figures_of_measures(name, tmp_path):
    study = papers.load(name)
    rows = []
    for i, series in enumerate(("one", "two")):
        for seed in range(2):
            values = {measure: 0.1 * (i + k) + 0.01 * seed for k, measure in enumerate(study.shown)}
            rows.append(row(series, "45,000 images", seed, 0.5, measures=values))
    bars = bars_of(study.figure(summaries(rows), tmp_path).axes[0])
    for i, (_, values, low, high) in enumerate(bars.values()):
        assert values == pytest.approx([10 * (i + k) + 0.5 for k in range(4)])
        assert all(a < b < c for a, b, c in zip(low, values, high, strict=True))
