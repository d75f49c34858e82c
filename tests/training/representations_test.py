"""Frozen features are what the classifier reads, and tell how well classes are told apart."""

import csv
import itertools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.decoding import image_decoder
from tests.training.fitting import evaluation_images, fitted
from training.__main__ import main
from training.assignments import override
from training.data import load_dataset
from training.distribution import Engine
from training.errors import InputError
from training.fewshot import fewshot_accuracy, neighbour_accuracy
from training.representations import features, measure, table
from training.runs import open_run


@pytest.fixture(scope="module")
def recipe(brief_recipe):
    return override(brief_recipe, ["fit.epochs=3", "fit.batch_size=50"])


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    fitting = fitted(recipe)
    run = open_run(recipe, load_dataset(recipe.data), tmp_path_factory.mktemp("runs"), None, Engine(None))
    fitting.model.save(run.model)
    return run


@pytest.fixture(scope="module")
def model(run):
    return keras.models.load_model(run.model)


@pytest.fixture(scope="module")
def splits(model, recipe):
    """{split: (what the classifier reads of all images, labels)}, by Keras's own means."""
    inner = keras.Model(model.inputs, model.get_layer("predictions").input)
    dataset = load_dataset(recipe.data)
    found = {}
    for split in ("train", "test"):
        images, labels = evaluation_images(dataset, split, image_decoder(model), recipe)
        found[split] = inner.predict(images, verbose=0), labels.argmax(axis=1)
    return found


def test_features_are_what_the_classifier_reads(model, recipe, splits):
    found = features(model, load_dataset(recipe.data).splits["test"], recipe)
    assert found.shape == (360, 16)
    np.testing.assert_allclose(found, splits["test"][0], atol=1e-5)


@pytest.mark.parametrize("nested", [False, True])
def test_of_a_model_without_classifier_the_output_is_taken(recipe, nested):
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20, pooling="avg")
    model = keras_vit.ViT(config, input_shape=(8, 8, 1), include_top=False, include_preprocessing=True)
    dataset = load_dataset(recipe.data)
    images, _ = evaluation_images(dataset, "test", image_decoder(model), recipe)
    expected = model.predict(images, verbose=0)
    if nested:  # Fine-tuned: what its classifier reads is the same.
        model = keras.Sequential([model, keras.layers.Dense(3, name="own_classes")])
    np.testing.assert_allclose(features(model, dataset.splits["test"], recipe), expected, atol=1e-5)


def test_tokens_are_no_features(recipe):
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20, pooling=None)
    model = keras_vit.ViT(config, input_shape=(8, 8, 1), include_top=False, include_preprocessing=True)
    with pytest.raises(InputError, match=r"no vector for an image, but an output of shape \(None, 5, 12\)"):
        features(model, load_dataset(recipe.data).splits["test"], recipe)


@pytest.mark.parametrize("neighbours", [None, 7])
def test_a_run_is_measured_on_its_own_data(run, splits, neighbours):
    rows, sentences = measure(run.folder, [], [1, 3], 2, neighbours)
    train, train_labels = splits["train"]
    test, test_labels = splits["test"]
    expected = fewshot_accuracy(train, train_labels, test, test_labels, [1, 3], [0, 1])
    ridge = {(row.size, row.seed): row for row in rows if row.method == "ridge"}
    assert len(ridge) == 4
    for (size, seed), row in ridge.items():
        assert row.accuracy == pytest.approx(expected[size][seed], abs=2 / 360)  # Of two scores one may be the larger.
        assert (row.num_train, row.num_test) == (10 * size, 360)
    assert sentences == ["digits: 16 features of an image, 360 test images"]
    if neighbours is not None:
        expected = neighbour_accuracy(train, train_labels, test, test_labels, 7)
        assert rows[-1].accuracy == pytest.approx(expected, abs=2 / 360)
        assert (rows[-1].method, rows[-1].num_train) == ("neighbours", 1293)


def test_more_shots_are_better_on_digits(run):
    """By more than the noise of ten draws: two standard errors of the difference."""
    rows, _ = measure(run.folder, [], [1, 5, 25, 100], 10)
    by_shots = [np.array([row.accuracy for row in rows if row.size == size]) for size in (1, 5, 25, 100)]
    for fewer, more in itertools.pairwise(by_shots):
        noise = np.sqrt((fewer.var(ddof=1) + more.var(ddof=1)) / 10)
        assert more.mean() > fewer.mean() - 2 * noise
    assert by_shots[-1].mean() > by_shots[0].mean() + 0.05


def test_the_command_prints_a_table_and_writes_the_seeds(run, splits, tmp_path, capsys):
    path = tmp_path / "accuracies.csv"
    arguments = ["fewshot", str(run.folder), "--shots", "200", "2", "--seeds", "2", "--knn", "--csv", str(path)]
    assert not main(arguments)
    lines = capsys.readouterr().out.splitlines()
    counts = np.bincount(splits["train"][1])
    assert lines[1] == (
        f"10 of 10 classes have fewer than 200 training images, of which all are taken: {counts.argmin()} has "
        f"{counts.min()}."
    )
    assert [line.split("  ")[0] for line in lines[3:]] == [
        "learned from",
        "2 of each class",
        "200 of each class",
        "all, 20 nearest neighbours",
    ]
    rows = list(csv.DictReader(path.open()))
    assert [(row["method"], row["size"], row["seed"], row["num_train"]) for row in rows] == [
        ("ridge", "2", "0", "20"),
        ("ridge", "2", "1", "20"),
        ("ridge", "200", "0", "1293"),
        ("ridge", "200", "1", "1293"),
        ("neighbours", "20", "", "1293"),
    ]
    of_two = np.array([float(row["accuracy"]) for row in rows[:2]])
    spread = [f"{value:.2%}" for value in (of_two.mean(), of_two.min(), of_two.max())]
    assert lines[4].split()[-4:] == ["20", *spread]


def test_too_many_neighbours_are_refused(run):
    with pytest.raises(InputError, match=r"2000 neighbours are more than the 1,293 training images"):
        measure(run.folder, [], [1], 1, 2000)


def test_one_seed_has_no_spread(run):
    rows, _ = measure(run.folder, [], [2], 1)
    assert table(rows).splitlines()[1].split()[-2:] == ["20", f"{rows[0].accuracy:.2%}"]
