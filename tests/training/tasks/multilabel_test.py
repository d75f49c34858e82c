"""Multi-label classification: the metrics equal scikit-learn's, and a run from the data to predictions."""

import dataclasses
import json
import pathlib

import keras
import numpy as np
import pytest
import sklearn.metrics

import keras_vit
from keras_vit.data.decoding import image_decoder
from tests.test_case import randomize
from training import recipes
from training.data.augment import build_augmentation
from training.data.subsets import select
from training.engine import train
from training.errors import InputError
from training.evaluation.multilabel import MultiLabel, average_precision
from training.inspection.evaluate import evaluate_source
from training.inspection.predict import predict
from training.recipe.assignments import override
from training.reports.text import multilabel_text
from training.tasks.multilabel import MeanAveragePrecision, Task

NAMES = ("ant", "bee", "cat", "dog")
BRIEF = ["model.config.num_layers=1", "model.config.hidden_dim=16", "fit.epochs=none", "fit.steps=2"]
BRIEF += ["data.train_images=64", "fit.report_every=1 steps"]


def _drawn(count=50, labels=4):
    rng = np.random.default_rng(0)
    truths = rng.random((count, labels)) < 0.3
    return truths, np.round(0.6 * truths + rng.random((count, labels)), 2) / 1.6  # Some probabilities are equal.


def test_average_precision_is_that_of_scikit_learn():
    truths, probabilities = _drawn()
    for row, scores in zip(truths.T, probabilities.T, strict=True):
        expected = sklearn.metrics.average_precision_score(row, scores)
        assert average_precision(row, scores) == pytest.approx(expected, abs=1e-12)


def test_results_of_labels_are_those_of_scikit_learn():
    truths, probabilities = _drawn()
    truths[:, 3] = False
    evaluation = MultiLabel(truths, probabilities, NAMES)
    expected = [sklearn.metrics.average_precision_score(truths[:, i], probabilities[:, i]) for i in range(3)]
    assert evaluation.mean_average_precision == pytest.approx(np.mean(expected))
    assert evaluation.f1 == pytest.approx(sklearn.metrics.f1_score(truths, probabilities >= 0.5, average="micro"))
    assert evaluation.exact == pytest.approx(sklearn.metrics.accuracy_score(truths, probabilities >= 0.5))
    scores = {score.name: score for score in evaluation.by_label}
    assert scores["bee"].precision == pytest.approx(sklearn.metrics.precision_score(*_column(truths, probabilities, 1)))
    assert scores["bee"].recall == pytest.approx(sklearn.metrics.recall_score(*_column(truths, probabilities, 1)))
    assert (scores["dog"].average_precision, scores["dog"].recall, scores["dog"].images) == (None, None, 0)
    assert list(scores)[-1] == "dog"


def _column(truths, probabilities, index):
    return truths[:, index], probabilities[:, index] >= 0.5


def test_the_metric_of_a_run_is_close_to_the_exact_one():
    truths, probabilities = _drawn(400)
    metric, logits = MeanAveragePrecision(4), np.log(probabilities / (1 - probabilities + 1e-9) + 1e-9)
    weights = np.ones(400, "float32")
    weights[300:] = 0
    for rows in (slice(0, 250), slice(250, 400)):
        metric.update_state(truths[rows].astype("float32"), logits[rows], sample_weight=weights[rows])
    expected = MultiLabel(truths[:300], probabilities[:300], NAMES).mean_average_precision
    assert float(metric.result()) == pytest.approx(expected, abs=0.005)
    metric.reset_state()
    assert float(metric.result()) == 0


@pytest.fixture(scope="module")
def recipe():
    return override(recipes.load("digit_sets"), BRIEF)


def test_labels_of_a_batch_are_multi_hot(recipe):
    dataset = Task(recipe).load()
    [example] = dataset.splits["test"].in_order().take(1)
    changes = build_augmentation(_model(), recipe.augment)
    sample = changes.change(changes.decode(example), [0, 0])
    assert sample["image"].shape == (10, 30, 1)
    label = Task(recipe).read_label(sample, 10)
    assert label.dtype == "float32"
    np.testing.assert_array_equal(label, example["labels"])
    assert 1 <= sum(label) <= 3


def _model(**arguments):
    recipe = override(recipes.load("digit_sets"), BRIEF)
    options = {"input_shape": (10, 30, 1), "classes": 10, "include_preprocessing": True, **arguments}
    return randomize(keras_vit.ViT(recipe.model.config, **options))


@pytest.mark.slow
def test_an_evaluation_has_the_probabilities_of_all_images(recipe):
    dataset = Task(recipe).load()
    source = select(dataset.splits["test"], range(70))  # The last batch has padding.
    dataset = dataclasses.replace(dataset, splits={"test": source})
    model = _model(classifier_activation="sigmoid")
    evaluation = Task(recipe).evaluate(model, dataset, "test")
    examples = list(source.in_order().as_numpy_iterator())
    images = np.stack([image_decoder(model)(example["image"]) for example in examples])
    np.testing.assert_allclose(evaluation.probabilities, model(images), atol=1e-5)
    np.testing.assert_array_equal(evaluation.labels, [example["labels"] for example in examples])
    assert len(evaluation.examples) == 12
    np.testing.assert_array_equal(evaluation.examples[0], images[0])
    assert multilabel_text(evaluation).count("\n") == 15


@pytest.mark.slow
@pytest.mark.combination("task=multilabel", "a run, its report, evaluate, export and predict")
def test_a_run_and_what_follows(recipe, tmp_path, capsys):
    run, evaluation = train.train(recipe, tmp_path)
    facts = json.loads(run.recipe.read_text())["result"]
    assert facts["test_mean_average_precision"] == evaluation.mean_average_precision
    page = run.report.read_text()
    assert f"{evaluation.mean_average_precision:.2%}" in page
    assert page.count("<th scope=row>") > 10
    output = keras_vit.describe(keras.models.load_model(run.model)).outputs["predictions"]
    assert (output.kind, output.activation, output.names) == ("labels", "sigmoid", [*map(str, range(10))])
    printed = evaluate_source(run.folder)
    assert f"{evaluation.mean_average_precision:.2%} (1,000 images)" in printed
    capsys.readouterr()
    assert predict(run.export, [run.samples / "0.png"]) == 0
    assert "no label (best: " in capsys.readouterr().out
    table = tmp_path / "others.csv"
    pictures = sorted(run.samples.iterdir())
    table.write_text("path,labels\n" + "\n".join(f"{path},{n % 2 + 3}" for n, path in enumerate(pictures)))
    others = ["data.dataset=table", f"data.directory={table}"]
    assert f"({len(pictures)} images)" in evaluate_source(run.folder, others, "all")  # Most labels do not occur.
    with pytest.raises(InputError, match=r"--to=a\.xlsx must be a file \.csv, .*, or a folder without a suffix"):
        predict(run.export, [table], to=pathlib.Path("a.xlsx"))
    with pytest.raises(InputError, match="is a table of images, which would be replaced"):
        predict(run.export, [table], to=table)
