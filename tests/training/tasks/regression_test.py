"""Regression: errors equal NumPy's and scikit-learn's, and a run from the data to predictions."""

import dataclasses
import json
import re

import keras
import numpy as np
import pytest
import sklearn.metrics

import keras_vit
from keras_vit.data.decoding import image_decoder
from tests.test_case import assert_close, randomize, to_numpy
from tests.training.tasks.multilabel_test import BRIEF
from training import recipes
from training.data.subsets import select
from training.engine import train
from training.errors import InputError
from training.evaluation.regression import Regression
from training.inspection.evaluate import evaluate_source
from training.inspection.predict import predict
from training.recipe.assignments import override
from training.reports.text import regression_text
from training.tasks.regression import MeanAbsoluteError, StandardizedSquaredError, Task

MEAN, DEVIATION = np.array([100.0, -2.0]), np.array([20.0, 0.5])


@pytest.fixture(scope="module")
def recipe():
    return override(recipes.load("digit_sums"), BRIEF)


def _drawn(count=30):
    rng = np.random.default_rng(0)
    values = MEAN + DEVIATION * rng.normal(size=(count, 2))
    return values.astype("float32"), rng.normal(size=(count, 2)).astype("float32")


def test_loss_and_metric_follow_the_standardised_outputs():
    values, outputs = _drawn()
    losses = StandardizedSquaredError(MEAN, DEVIATION)(values, outputs)
    assert_close(losses, (((values - MEAN) / DEVIATION - outputs) ** 2).mean(axis=1))
    metric = MeanAbsoluteError(MEAN, DEVIATION)
    weights = np.array([1] * 20 + [0] * 10, "float32")
    metric.update_state(values, outputs, sample_weight=weights)
    errors = np.abs(outputs * DEVIATION + MEAN - values)[:20]
    assert float(metric.result()) == pytest.approx((errors / DEVIATION).mean(), rel=1e-5)
    metric = MeanAbsoluteError(MEAN[1:], DEVIATION[1:])
    metric.update_state(values[:, 1:], outputs[:, 1:], sample_weight=weights)
    assert float(metric.result()) == pytest.approx(errors[:, 1].mean(), rel=1e-5)


def test_results_are_those_of_scikit_learn():
    values, outputs = _drawn()
    evaluation = Regression(values.astype("float64"), MEAN + DEVIATION * outputs, ("age", "height"))
    pair = evaluation.values, evaluation.predictions
    scaled = [array / pair[0].std(axis=0) for array in pair]  # The values have different units.
    assert evaluation.mean_absolute_error == pytest.approx(sklearn.metrics.mean_absolute_error(*scaled))
    assert evaluation.root_mean_squared_error == pytest.approx(sklearn.metrics.mean_squared_error(*scaled) ** 0.5)
    age = evaluation.of_value(0)
    assert age.mean_absolute_error == pytest.approx(np.abs(pair[0] - pair[1])[:, 0].mean())
    assert age.root_mean_squared_error == pytest.approx(((pair[0] - pair[1])[:, 0] ** 2).mean() ** 0.5)
    assert evaluation.r_squared == pytest.approx(sklearn.metrics.r2_score(*pair))
    assert evaluation.of_value(1).r_squared == pytest.approx(sklearn.metrics.r2_score(pair[0][:, 1], pair[1][:, 1]))
    constant = Regression(np.ones((3, 1)), np.zeros((3, 1)), ("age",))
    assert constant.r_squared == 0


def test_a_finished_model_returns_the_values_themselves(recipe):
    task = Task(recipe)
    dataset = task.load()
    mean, deviation = dataset.scale
    sums = [example["values"] for example in dataset.splits["train"].in_order().as_numpy_iterator()]
    assert_close(mean, np.mean(sums, axis=0))
    assert_close(deviation, np.std(sums, axis=0))
    arguments = {"input_shape": (10, 30, 1), "include_preprocessing": True, **task.head_arguments(1, False)}
    model = randomize(keras_vit.ViT(recipe.model.config, **arguments))
    images = np.random.default_rng(0).integers(0, 256, (2, 10, 30, 1)).astype("float32")
    standardised = to_numpy(model(images))
    task.finish(model, dataset)
    assert_close(model(images), standardised * deviation + mean)
    assert keras_vit.describe(model).outputs["predictions"] == keras_vit.Output("values", None, ["sum"])


@pytest.mark.slow
def test_an_evaluation_has_the_values_of_all_images(recipe):
    dataset = Task(recipe).load()
    source = select(dataset.splits["test"], range(70))  # The last batch has padding.
    dataset = dataclasses.replace(dataset, splits={"test": source})
    options = {"input_shape": (10, 30, 1), "classes": 1, "classifier_activation": None, "include_preprocessing": True}
    model = randomize(keras_vit.ViT(recipe.model.config, **options))
    evaluation = Task(recipe).evaluate(model, dataset, "test")
    examples = list(source.in_order().as_numpy_iterator())
    images = np.stack([image_decoder(model)(example["image"]) for example in examples])
    assert_close(evaluation.predictions, to_numpy(model(images)))
    np.testing.assert_array_equal(evaluation.values, [example["values"] for example in examples])
    errors = np.abs(evaluation.errors[:, 0])
    assert list(evaluation.worst) == np.argsort(-errors, kind="stable")[:8].tolist()
    np.testing.assert_array_equal(evaluation.worst[int(errors.argmax())], images[errors.argmax()])
    assert regression_text(evaluation).endswith(f"{evaluation.r_squared:.4f}")


@pytest.mark.slow
@pytest.mark.combination("task=regression", "a run, its report, evaluate, export and predict")
def test_a_run_and_what_follows(recipe, tmp_path, capsys):
    run, evaluation = train.train(recipe, tmp_path)
    result = json.loads(run.recipe.read_text())["result"]
    assert result["test_mean_absolute_error"] == evaluation.mean_absolute_error
    assert f"{evaluation.mean_absolute_error:.4g}" in run.report.read_text()
    assert (run.figures / "scatter_sum.png").is_file()
    model = keras.models.load_model(run.model)
    assert keras_vit.describe(model).outputs["predictions"].kind == "values"
    assert re.search(rf"^sum +{evaluation.mean_absolute_error:.4g} ", evaluate_source(run.folder), re.MULTILINE)
    capsys.readouterr()
    assert predict(run.export, [run.samples / "0.png"]) == 0
    assert float(capsys.readouterr().out.rsplit(" ", 1)[1]) == pytest.approx(evaluation.predictions[0, 0], rel=1e-3)


@pytest.mark.parametrize(
    ("task", "dataset", "message"),
    [
        (
            "classification",
            "digit_sums",
            "no classes. Choose a recipe for values, or one .*: .*digits, .*, the name of a data set of TFDS",
        ),
        ("classification", "digit_sets", "has labels, but no classes"),
        (
            "regression",
            "digits",
            "but no values. Choose a recipe for classes, or .*: archives, records, .*",
        ),
        ("multilabel", "digits", "has classes, but no labels"),
    ],
)
def test_data_of_another_task_are_refused(task, dataset, message, tmp_path):
    recipe = override(recipes.load("digits"), [f"task={task}", f"data.dataset={dataset}"])
    with pytest.raises(InputError, match=message):
        train.train(recipe, tmp_path)
