"""The frozen features are the classifier's input, and they distinguish the classes."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.test_case import randomize
from training.__main__ import main
from training.data.loading import load_dataset
from training.engine.distribution import Engine
from training.engine.models import build_model
from training.errors import InputError
from training.evaluation.fewshot import fewshot_accuracy, neighbour_accuracy
from training.evaluation.outputs import features
from training.inspection import fewshot
from training.inspection.fewshot import Accuracy, measure, table
from training.recipe.assignments import override
from training.runs.folder import open_run


@pytest.fixture(scope="module")
def recipe(brief_recipe):
    return override(brief_recipe, ["fit.batch_size=50", "data.train_images=400"])


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    """A run with random weights. Its features distinguish the digits well enough."""
    run = open_run(recipe, load_dataset(recipe.data), tmp_path_factory.mktemp("runs"), None, Engine(None))
    randomize(build_model(recipe, 10)).save(run.model)
    return run


@pytest.fixture(scope="module")
def model(run):
    return keras.models.load_model(run.model)


@pytest.fixture(scope="module")
def splits(model, recipe):
    """{split: (the classifier's input for all images, labels)}, computed with Keras only."""
    inner, found = keras.Model(model.input, model.get_layer("predictions").input), {}
    for split in ("train", "test"):
        examples = list(load_dataset(recipe.data).splits[split].in_order().as_numpy_iterator())
        images = np.stack([tf.io.decode_png(example["image"]) for example in examples])
        labels = np.array([example["label"] for example in examples])
        found[split] = keras.ops.convert_to_numpy(inner(images, training=False)), labels
    return found


def test_tokens_are_no_features(recipe):
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20, pooling=None)
    model = keras_vit.ViT(config, input_shape=(8, 8, 1), include_top=False, include_preprocessing=True)
    with pytest.raises(InputError, match=r"one vector per image\. Received: a model with output shape \(None, 5, 12\)"):
        features(model, load_dataset(recipe.data).splits["test"], recipe)


@pytest.mark.slow
def test_a_run_is_measured_on_its_own_data(run, splits):
    rows, sentences = measure(run.folder, [], [1, 5], 2)
    assert sentences == ["digits: 16 features of an image, 360 test images"]
    expected = fewshot_accuracy(*splits["train"], *splits["test"], [1, 5], range(2))
    assert [(row.method, row.size, row.seed) for row in rows] == [
        ("ridge", size, seed) for size in (1, 5) for seed in range(2)
    ]
    for row in rows:
        # Rounding may change which of two nearly equal scores is larger.
        assert row.accuracy == pytest.approx(expected[row.size][row.seed], abs=2 / 360)
        assert (row.num_train, row.num_test) == (10 * row.size, 360)
    assert max(row.accuracy for row in rows[:2]) < min(row.accuracy for row in rows[2:])


def test_the_command_prints_a_table_and_writes_the_seeds(run, splits, tmp_path, capsys, monkeypatch):
    by_size = {len(labels): vectors for vectors, labels in splits.values()}  # Extraction takes seconds.
    monkeypatch.setattr(fewshot, "features", lambda model, source, recipe: by_size[source.size])
    path = tmp_path / "accuracies.csv"
    arguments = ["fewshot", str(run.folder), "--shots", "200", "2", "--seeds", "2", "--knn", "--csv", str(path)]
    assert not main(arguments)
    lines = capsys.readouterr().out.splitlines()
    counts = np.bincount(splits["train"][1])
    assert lines[1] == (
        f"10 of 10 classes have fewer than 200 training images, so all their images are used. {counts.argmin()} has "
        f"the fewest: {counts.min()}."
    )
    names = ["learned from", "2 of each class", "200 of each class", "all, 20 nearest neighbours"]
    assert [line.split("  ")[0] for line in lines[3:]] == names
    rows = list(csv.DictReader(path.open()))
    assert [(row["method"], row["size"], row["seed"], row["num_train"]) for row in rows] == [
        ("ridge", "2", "0", "20"),
        ("ridge", "2", "1", "20"),
        ("ridge", "200", "0", "400"),
        ("ridge", "200", "1", "400"),
        ("neighbours", "20", "", "400"),
    ]
    neighbours = neighbour_accuracy(*splits["train"], *splits["test"], 20)
    assert float(rows[-1]["accuracy"]) == pytest.approx(neighbours)
    of_two = np.array([float(row["accuracy"]) for row in rows[:2]])
    spread = [f"{value:.2%}" for value in (of_two.mean(), of_two.min(), of_two.max())]
    assert lines[4].split()[-4:] == ["20", *spread]


def test_too_many_neighbours_are_refused(run, monkeypatch):
    monkeypatch.setattr(fewshot, "read_labels", lambda source, name: np.zeros(source.size, int))
    with pytest.raises(InputError, match="--knn=2000 must be at most 400, the number of training images"):
        measure(run.folder, [], [1], 1, 2000)


def test_one_seed_has_no_spread():
    [row] = table([Accuracy("ridge", 2, 0, 0.4321, 20, 360)]).splitlines()[1:]
    assert row.split()[-2:] == ["20", "43.21%"]
