"""Fitting and evaluating: that a model learns from the labels and nothing else, and that the figures are right."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.assignments import override
from training.data import Dataset, load_dataset
from training.errors import InputError
from training.evaluate import Evaluation, evaluate, nearest_neighbour_accuracy
from training.runs import Run
from training.train import build_model, fit, start, train, write_samples


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
    assert accuracies["true"] > 0.3


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


def test_mixed_precision_trains(brief_recipe):
    recipe = override(brief_recipe, ["fit.precision=mixed_bfloat16", "fit.epochs=1"])
    dataset = load_dataset(recipe.data)
    try:
        start(recipe)
        model = build_model(recipe, 10, classifier_activation=None)
        history = fit(model, dataset, recipe)
    finally:
        keras.config.set_dtype_policy("float32")
    assert np.isfinite(history.history["loss"]).all()
    assert model.get_layer("encoder_block_0").compute_dtype == "bfloat16"
    assert model.output.dtype == "float32"
    assert {weight.dtype for weight in model.weights} == {"float32"}


def test_a_loss_that_is_not_a_number_ends_the_run(brief_recipe, tmp_path):
    recipe = override(brief_recipe, ["optimizer.learning_rate=1e30", "optimizer.clip_norm=none", "schedule.warmup=0"])
    with pytest.raises(InputError, match=r"not a number after epoch 1\. Lower optimizer\.learning_rate"):
        train(recipe, tmp_path)
    [folder] = tmp_path.iterdir()
    assert not (folder / "export").exists()


def test_runs_that_cannot_be_kept_are_refused_before_any_work(brief_recipe, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    for runs in ("file", "dangling"):
        with pytest.raises(InputError, match=r"cannot be kept in .*--runs"):
            train(recipe=brief_recipe, runs=tmp_path / runs)


def test_samples_have_names_of_their_own(brief_recipe, tmp_path):
    dataset = load_dataset(brief_recipe.data)
    names = ("a b", "a_b", "犬", "猫", "a/b", "..", "f", "g", "h", "i")
    run = Run(tmp_path)
    run.samples.mkdir()
    paths = write_samples(dataclasses.replace(dataset, class_names=names), run)
    assert len({path.name for path in paths}) == 8
    assert sorted(path.name for path in run.samples.iterdir()) == sorted(path.name for path in paths)
    assert all(path.suffix == ".png" for path in paths)
