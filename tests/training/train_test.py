"""A run, end to end: what it leaves, that it can be repeated, and that it learns from the labels and nothing else."""

import csv
import json
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import recipes
from training.config import override, to_dict
from training.data import Dataset, load_dataset
from training.evaluate import Evaluation, evaluate, nearest_neighbour_accuracy
from training.train import build_model, fit, start, train


def test_leaves_everything_in_its_folder(brief_run, brief_recipe):
    run, evaluation, facts = brief_run
    assert re.fullmatch(r"digits-\d{8}-\d{6}(-\d+)?", run.folder.name)
    assert {path.name for path in run.folder.iterdir()} == {
        "recipe.json",
        "history.csv",
        "tensorboard",
        "checkpoints",
        "model.keras",
        "export",
        "figures",
        "samples",
        "report.html",
    }
    assert (run.export / "1" / "saved_model.pb").is_file()
    assert {path.name for path in run.checkpoints.iterdir()} == {"best.weights.h5", "last.weights.h5"}
    assert {path.name for path in run.figures.iterdir()} == {"curves.png", "confusion_matrix.png", "mistakes.png"}
    assert list(run.tensorboard.rglob("events.out.tfevents*"))
    rows = list(csv.DictReader(run.history.open()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert set(rows[0]) == {"epoch", "accuracy", "loss", "val_accuracy", "val_loss"}
    assert facts["recipe"] == to_dict(brief_recipe)
    assert facts["result"]["test_accuracy"] == evaluation.accuracy
    assert {"keras", "tensorflow", "keras-vit-applications", "python"} <= set(facts["versions"])
    assert facts["git"] is None or re.fullmatch(r"[0-9a-f]{40}", facts["git"]["commit"])


def test_recipe_json_is_a_recipe(brief_run, brief_recipe):
    run, _, _ = brief_run
    assert recipes.load(str(run.recipe)) == brief_recipe


def test_model_checkpoint_and_savedmodel_agree(brief_run, brief_recipe):
    run, evaluation, _ = brief_run
    model = keras.models.load_model(run.model)
    np.testing.assert_allclose(model.predict(evaluation.images, verbose=0), evaluation.probabilities, atol=1e-6)
    last = build_model(brief_recipe, 10)
    last.load_weights(run.checkpoints / "last.weights.h5")
    np.testing.assert_allclose(last.predict(evaluation.images, verbose=0), evaluation.probabilities, atol=1e-6)
    pixels = tf.saved_model.load(str(run.export / "1")).signatures["predict_pixels"]
    served = pixels(images=tf.constant(evaluation.images))["probabilities"]
    np.testing.assert_allclose(served, evaluation.probabilities, atol=1e-5)


def test_same_seed_gives_the_same_history_to_the_last_digit(brief_recipe, tmp_path):
    command = [sys.executable, "-m", "training", "train"]
    histories = []
    for attempt in ("first", "second"):
        recipe = tmp_path / f"{attempt}.json"
        recipe.write_text(json.dumps({"recipe": to_dict(brief_recipe)}))
        subprocess.run([*command, str(recipe), "--runs", str(tmp_path / attempt)], check=True, capture_output=True)
        [history] = (tmp_path / attempt).glob("*/history.csv")
        histories.append(history.read_text())
    assert histories[0] == histories[1]
    assert len(histories[0].splitlines()) == 3


def test_shuffled_labels_stay_at_chance(brief_recipe):
    recipe = override(brief_recipe, ["fit.epochs=15", "data.validation_fraction=0"])
    start(recipe)
    dataset = load_dataset(recipe.data)
    examples = list(dataset.splits["train"].as_numpy_iterator())
    labels = np.random.default_rng(0).permutation([example["label"] for example in examples])
    shuffled = tf.data.Dataset.from_tensor_slices({"image": [e["image"] for e in examples], "label": labels})
    shuffled = Dataset(dataset.class_names, {**dataset.splits, "train": shuffled}, dataset.sizes)
    accuracies = {}
    for name, data in {"true": dataset, "shuffled": shuffled}.items():
        model = build_model(recipe, 10, classifier_activation=None)
        fit(model, data, recipe)
        accuracies[name] = evaluate(model, data, "test", recipe).accuracy
    # Chance is 0.1; four standard deviations of 360 draws are 0.063.
    assert accuracies["shuffled"] < 0.1 + 0.063
    assert accuracies["true"] > 0.5


def test_nearest_neighbour_equals_numpy(brief_recipe):
    dataset = load_dataset(brief_recipe.data)
    model = build_model(brief_recipe, 10)
    parts = {split: evaluate(model, dataset, split, brief_recipe) for split in dataset.splits}
    known = np.concatenate([parts["train"].images, parts["validation"].images]).reshape(-1, 64).astype(float)
    labels = np.concatenate([parts["train"].labels, parts["validation"].labels])
    unknown = parts["test"].images.reshape(-1, 64).astype(float)
    distances = (unknown**2).sum(1)[:, None] - 2 * unknown @ known.T + (known**2).sum(1)
    expected = (labels[distances.argmin(1)] == parts["test"].labels).mean()
    assert nearest_neighbour_accuracy(model, dataset, brief_recipe) == pytest.approx(expected, abs=1 / 360)
    assert nearest_neighbour_accuracy(model, dataset, brief_recipe, max_values=1000) is None


def test_evaluation_counts():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.6, 0.3, 0.1]])
    evaluation = Evaluation(np.zeros((4, 1, 1, 1)), np.array([0, 1, 1, 2]), probabilities, ("a", "b", "c"))
    assert evaluation.accuracy == 0.5
    assert evaluation.loss == pytest.approx(-np.log([0.7, 0.8, 0.3, 0.1]).mean())
    np.testing.assert_array_equal(evaluation.confusion, [[1, 0, 0], [0, 1, 1], [1, 0, 0]])
    assert "50.00%" in str(evaluation)


def test_mixed_precision_trains(brief_recipe, tmp_path):
    recipe = override(brief_recipe, ["fit.precision=mixed_bfloat16", "fit.epochs=1"])
    try:
        _, evaluation = train(recipe, tmp_path)
    finally:
        keras.config.set_dtype_policy("float32")
    assert np.isfinite(evaluation.loss)
    assert evaluation.probabilities.dtype == np.float32
