"""A run from start to end: its files, and the commands as a user types them."""

import csv
import functools
import io
import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.export.runtimes import RuntimeFile
from tests.training.fitting import array_pipeline, digits
from tests.training.inspection.explain_test import leave_figures_blank
from training import recipes
from training.__main__ import main
from training.data.loading import load_dataset
from training.engine import train as training_module
from training.engine.models import build_model
from training.engine.step import TrainedModel
from training.engine.train import predict_elsewhere, train
from training.errors import InputError
from training.inspection import evaluate
from training.inspection import export as export_module
from training.recipe.assignments import override
from training.recipe.config import to_dict
from training.runs.checkpoints import Checkpoints
from training.tasks import classification


@pytest.fixture(scope="module")
def recipe(brief_recipe):
    """A recipe with two steps per epoch. Its training images are more than int8 files are calibrated with."""
    return override(brief_recipe, ["data.train_images=305", "fit.batch_size=160"])


@pytest.fixture(scope="module")
def brief_run(recipe, tmp_path_factory):
    """A run without nearest neighbours, its evaluation, its recipe.json, and the call of `predict_elsewhere`.

    Few steps are faster without tracing, and batches without decoding. The export has the signatures that are called.
    """
    calls, signatures = [], ["serving_default", "explain"]
    export = functools.partial(keras_vit.export_saved_model, signatures=signatures, batch_sizes=[8])
    with pytest.MonkeyPatch.context() as patch, array_pipeline():
        patch.setattr(TrainedModel, "compile", functools.partialmethod(TrainedModel.compile, run_eagerly=True))
        patch.setattr(keras_vit, "export_saved_model", export)
        patch.setattr(classification, "nearest_neighbour_accuracy", lambda model, dataset, recipe: 0.25)
        patch.setattr(training_module, "predict_elsewhere", lambda *arguments: calls.append(arguments))
        run, evaluation = train(recipe, tmp_path_factory.mktemp("runs"))
    return run, evaluation, json.loads(run.recipe.read_text()), *calls


@pytest.fixture(scope="module")
def held_out(recipe):
    """The test images (360, 8, 8, 1) with pixels from 0 to 255."""
    examples = load_dataset(recipe.data).splits["test"].in_order().as_numpy_iterator()
    return np.stack([np.asarray(PIL.Image.open(io.BytesIO(example["image"]))) for example in examples])[..., None]


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """Caches SavedModels, because loading one takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.saved_model, "load", functools.cache(tf.saved_model.load))
        yield


@pytest.mark.combination("the labels of a run's export", "the classes of the run, in their order")
def test_leaves_everything_in_its_folder(brief_run, recipe):
    run, evaluation, facts, _ = brief_run
    assert re.fullmatch(r"digits-\d{8}-\d{6}(-\d+)?", run.folder.name)
    names = {
        "recipe.json",
        "splits.csv",
        "history.csv",
        "tensorboard",
        "checkpoints",
        "model.keras",
        "export",
        "figures",
        "samples",
    }
    assert {path.name for path in run.folder.iterdir()} == names | {"report.html"}
    assert (run.export / "1" / "saved_model.pb").is_file()
    assert (run.export / "1" / "assets" / "labels.txt").read_text().splitlines() == facts["class_names"]
    assert {path.name for path in run.checkpoints.iterdir()} == {"step-000000002.npz", "step-000000004.npz"}
    figures = {path.name for path in run.figures.iterdir()}
    assert {"loss.png", "accuracy.png", "learning_rate.png", "confusion_matrix.png"} <= figures
    assert list(run.tensorboard.rglob("events.out.tfevents*"))
    rows = list(csv.DictReader(run.history.read_text().splitlines()))
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "2"), ("2", "4")]
    assert set(rows[0]) == {"epoch", "step", "learning_rate", "accuracy", "loss", "val_accuracy", "val_loss"}
    assert recipes.load(str(run.recipe)) == recipe
    assert facts["recipe"] == to_dict(recipe)
    assert facts["result"]["test_accuracy"] == evaluation.accuracy
    assert facts["result"]["test_loss"] == evaluation.loss
    assert facts["result"]["test_images"] == 360
    assert facts["result"]["nearest_neighbour_accuracy"] == 0.25
    assert facts["result"]["seconds_of_training"] > 0
    assert {"keras", "tensorflow", "keras-vit-applications", "python"} <= set(facts["versions"])
    assert facts["git"] is None or re.fullmatch(r"[0-9a-f]{40}", facts["git"]["commit"])


def test_model_checkpoint_savedmodel_and_history_agree(brief_run, recipe, held_out):
    run, evaluation, *_ = brief_run
    model, last = keras.models.load_model(run.model), build_model(recipe, 10)
    checkpoints = Checkpoints(run.checkpoints)
    arrays = checkpoints.read_arrays(max(checkpoints.steps()))["weights"]
    for variable, array in zip(last.weights, arrays, strict=True):
        variable.assign(array)
    for loaded in (model, last):
        np.testing.assert_allclose(loaded(held_out), evaluation.probabilities, atol=1e-6)
    files = sorted(run.samples.iterdir())
    serve = tf.saved_model.load(str(run.export / "1")).signatures["serving_default"]
    served = serve(image_bytes=tf.constant([path.read_bytes() for path in files]))["probabilities"]
    expected = model(np.stack([np.asarray(PIL.Image.open(path)) for path in files])[..., None])
    np.testing.assert_allclose(served, expected, atol=1e-5)
    images, labels = (array[-144:] for array in digits())
    probabilities = keras.ops.convert_to_numpy(model(images))
    *_, row = csv.DictReader(run.history.read_text().splitlines())
    accuracy = (probabilities.argmax(1) == labels.argmax(1)).mean()
    assert float(row["val_accuracy"]) == pytest.approx(accuracy, abs=1e-6)
    assert float(row["val_loss"]) == pytest.approx(-np.log(probabilities[labels == 1]).mean(), rel=1e-5)


def test_wrong_assignment_is_refused_before_any_work(tmp_path, capsys):
    assert main(["train", "digits", "fit.bach_size=3", "--runs", str(tmp_path / "runs")]) == 2
    assert "fit.batch_size" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_another_backend_is_refused():
    command, environment = [sys.executable, "-m", "training", "train"], os.environ | {"KERAS_BACKEND": "torch"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 2
    assert "TensorFlow or JAX. Received: KERAS_BACKEND=torch" in result.stderr
    assert "Traceback" not in result.stderr


def test_predict_names_classes_and_refuses_what_is_no_image(brief_run, tmp_path, capsys):
    run, *_ = brief_run
    images = sorted(run.samples.iterdir())
    assert main(["predict", str(run.folder), *map(str, images), "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [str(image) for image in images]
    assert all(line.count("%") == 3 for line in lines)
    text = tmp_path / "notes.jpg"
    text.write_text("no image")
    (tmp_path / "empty").mkdir()
    table = tmp_path / "predictions.csv"
    assert main(["predict", str(run.folder), str(run.samples), str(text), "--top", "2", "--to", str(table)]) == 1
    assert f"{table}: {len(images)} images" in capsys.readouterr().out
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == list(map(str, images))
    for row, line in zip(rows, lines, strict=True):
        assert line.startswith(f"{row['path']}: {row['label']} {float(row['score']):.1%}, ")
        assert row["labels"].split(";")[0] == row["label"]
        assert row["scores"].count(";") == 1
    assert main(["predict", str(run.export), str(text), str(images[0]), str(tmp_path / "absent")]) == 1
    output = capsys.readouterr().out.splitlines()
    assert output[0] == f"{text}: is not an image that can be decoded (JPEG, PNG, GIF, BMP or WebP)"
    assert output[1].startswith(f"{images[0]}: ")
    assert output[1].count("%") == 5
    assert "No such file" in output[2]
    assert main(["predict", str(run.export), str(images[0]), str(tmp_path / "empty")]) == 2
    assert f"{tmp_path / 'empty'} has no images" in capsys.readouterr().err


def test_held_out_images_are_predicted_by_a_program(brief_run, monkeypatch):
    run, _, _, arguments = brief_run
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append((command, check)))
    predict_elsewhere(*arguments)
    samples = sorted(map(str, run.samples.iterdir()))
    assert len(samples) == 8
    command = [sys.executable, "-m", "training", "predict", str(run.export), *samples, "--top", "1"]
    assert commands == [(command, True)]


def test_predict_refuses_what_is_no_model(tmp_path, brief_run, capsys):
    run, *_ = brief_run
    assert main(["predict", str(tmp_path), "image.png"]) == 2
    assert main(["predict", str(run.model), "image.png"]) == 2
    assert "python -m training export" in capsys.readouterr().err


def test_evaluate_repeats_the_runs_accuracy(brief_run, recipe, held_out, capsys, monkeypatch):
    """The run was evaluated by the same function. `evaluate_test.py` tests the evaluation itself."""
    run, evaluation, *_ = brief_run

    def evaluated(model, dataset, splits, found):
        assert (splits, found) == (["test"], recipe)
        assert dataset.splits["test"].size == 360
        np.testing.assert_allclose(model(held_out), evaluation.probabilities, atol=1e-6)
        return evaluation

    monkeypatch.setattr(classification, "evaluate", evaluated)
    assert not main(["evaluate", str(run.folder)])
    assert f"{evaluation.accuracy:.2%}" in capsys.readouterr().out
    assert main(["evaluate", str(run.folder / "absent")]) == 2
    assert "There is no file or folder" in capsys.readouterr().err
    for assignment in ("optimizer.learning_rate=1", "data.test_fraction=0.5", "data.validation_fraction=0.5"):
        assert main(["evaluate", str(run.folder), assignment]) == 2
        assert "cannot be changed for a trained model" in capsys.readouterr().err


def test_evaluate_takes_a_split_and_changes_of_the_data(monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "evaluate_source", lambda *arguments: f"called with {arguments}")
    assert not main(["evaluate", "a_run", "fit.batch_size=7", "--split", "validation", "--names", "a.txt"])
    expected = ("a_run", ["fit.batch_size=7"], "validation", "a.txt", "clip_best")
    assert f"called with {expected}" in capsys.readouterr().out


def test_a_command_that_needs_more_memory_says_so(monkeypatch, capsys):
    def evaluate_source(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr("training.inspection.evaluate.evaluate_source", evaluate_source)
    assert main(["evaluate", "runs/one"]) == 2
    assert re.fullmatch(
        r"error: The memory was not enough\. [\d.,]+ GB are free now\. Set a smaller fit\.batch_size\.\n",
        capsys.readouterr().err,
    )


def test_an_input_error_of_a_pipeline_has_no_traceback(monkeypatch, capsys):
    def read(index):
        raise InputError("Correct records.json")

    dataset = tf.data.Dataset.range(1).map(lambda index: tf.numpy_function(read, [index], tf.string, stateful=False))
    monkeypatch.setattr("training.inspection.evaluate.evaluate_source", lambda *_: list(dataset))
    assert main(["evaluate", "runs/one"]) == 2
    assert capsys.readouterr().err == "error: Correct records.json\n"


def test_assignments_may_stand_behind_options(capsys):
    for options in (["fit.epochs=7", "--show"], ["digits", "--show", "fit.epochs=7"]):
        assert not main(["train", *options])
        assert "fit.epochs=7 " in capsys.readouterr().out
    for wrong in (["train", "--shwo"], ["train", "digits", "--seed=3"], ["predict", "run", "x.png", "--to"]):
        with pytest.raises(SystemExit):
            main(wrong)


def test_a_recipe_that_is_needed_is_asked_for(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["records", "data.dataset=mnist", "--to", "shards"])
    assert exit_.value.code == 2
    assert "error: RECIPE is missing before data.dataset=mnist. " in capsys.readouterr().err


@pytest.fixture
def exports(brief_run, monkeypatch):
    """Arguments of the calls of `keras_vit.export_saved_model`, which is replaced: it returns the run's export."""
    calls = []

    def export_saved_model(model, path, **options):
        calls.append({"path": path, **options})
        return brief_run[0].export / "1"

    monkeypatch.setattr(keras_vit, "export_saved_model", export_saved_model)
    return calls


def test_export_writes_the_next_version(brief_run, exports, tmp_path, capsys):
    run, *_ = brief_run
    (tmp_path / "2").mkdir()
    assert not main(["export", str(run.folder), "--path", str(tmp_path)])
    text = r"Compared with the model on 8 images, for which the model predicts one class: largest difference of "
    assert re.search(text, capsys.readouterr().out)
    assert not main(["export", str(run.model), "--path", str(tmp_path / "new"), "--name", "ten"])
    names = tmp_path / "names.txt"
    names.write_text("".join(f"digit {i}\n" for i in range(10)))
    assert not main(["export", str(run.folder), "--labels", str(names), "--version", "7"])
    assert not main(["export", str(run.folder), "--path", str(tmp_path / "new"), "--card"])
    [measured] = [call.pop("card") for call in exports if "card" in call]
    accuracy = json.loads(run.recipe.read_text())["result"]["test_accuracy"]
    assert (measured.dataset, measured.metrics, measured.split) == ("digits", {"accuracy": accuracy}, "test")
    digits = [str(i) for i in range(10)]
    common = {"images": sorted(run.samples.iterdir()), "overwrite": False, "precision": "float32"}
    assert exports == [
        {"path": tmp_path, "labels": digits, "version": 3, "name": "digits", **common},
        {"path": tmp_path / "new", "labels": digits, "version": 1, "name": "ten", **common},
        {"path": run.export, "labels": [f"digit {i}" for i in digits], "version": 7, "name": "digits", **common},
        {"path": tmp_path / "new", "labels": digits, "version": 1, "name": "digits", **common},
    ]


def test_exports_that_cannot_be_written_are_refused(brief_run, tmp_path, capsys):
    run, *_ = brief_run
    assert main(["export", str(run.folder), "--version", "1"]) == 2
    assert "exists. Give another version, or --overwrite to replace it" in capsys.readouterr().err
    names = tmp_path / "names.txt"
    names.write_text("one\ntwo\n")
    assert main(["export", str(run.folder), "--path", str(tmp_path / "named"), "--labels", str(names)]) == 2
    assert "10 classes" in capsys.readouterr().err


@pytest.mark.slow
def test_export_for_other_runtimes(brief_run, tmp_path, capsys, monkeypatch):
    (run, *_), calls = brief_run, []

    def export_model(model, path, format, images=None, **options):
        calls.append((path, format, images, options))
        return RuntimeFile(path, int(2e6), 8, (1, 3), 1e-7, 1.0, 1, 2.5 if options["precision"] == "int8" else None)

    with monkeypatch.context() as patch:
        patch.setattr(keras_vit, "export_model", export_model)
        export = ["export", str(run.folder), "--path", str(tmp_path), "--format", "litert"]
        assert not main([*export, "--precision", "float32"])
        # The decoder of a model takes seconds for hundreds of images, because it is not traced.
        patch.setattr(export_module, "image_decoder", lambda model: lambda content: tf.io.decode_png(content, 1))
        assert not main([*export[:-1], "openvino", "--precision", "int8"])
    text = r"(?s)2\.0 MB\. Compared .* on 8 images, .* predicts one class: largest .* 1\.0e-07.* 2\.50 times as fast"
    assert re.search(text, capsys.readouterr().out)
    (path, format, compared, options), (int8_path, _, training_images, _) = calls
    assert (int8_path, np.unique(training_images, axis=0).shape) == (tmp_path / "1" / "digits.xml", (300, 8, 8, 1))
    assert (path.name, format, options) == ("digits.tflite", "litert", {"precision": "float32", "overwrite": False})
    samples = [np.asarray(PIL.Image.open(path))[..., None] for path in sorted(run.samples.iterdir())]
    np.testing.assert_array_equal(compared, samples)
    assert main([*export, "--name", "small", "--precision", "int8", "--version", "3"]) == 2
    assert "--version requires --format=saved_model or --format=openvino." in capsys.readouterr().err
    assert main([*export, "--name", "small", "--image-size", "8", "8"]) == 2
    assert "--image-size requires --format=saved_model" in capsys.readouterr().err


def test_every_command_explains_itself(capsys):
    for command in ("train", "plan", "records", "evaluate", "predict", "export"):
        with pytest.raises(SystemExit) as exit_:
            main([command, "--help"])
        assert exit_.value.code == 0
        assert f"usage: python -m training {command} " in capsys.readouterr().out


def test_records_writes_shards_that_can_be_trained_on(brief_recipe, tmp_path, capsys):
    directory = brief_recipe.data.tfds_directory
    assert not main(["records", "digits", f"data.tfds_directory={directory}", "--to", str(tmp_path / "shards")])
    output = capsys.readouterr().out
    assert f"4 shards in {tmp_path / 'shards'}" in output
    [line] = [line for line in output.splitlines() if "data.dataset=records" in line]
    recipe = override(brief_recipe, ["data.tfds_directory=none", *line.split()])
    assert load_dataset(recipe.data).splits["train"].size == 1293


def test_explains_a_run_and_what_is_left_of_it_in_its_export(brief_run, tmp_path, capsys, monkeypatch):
    leave_figures_blank(monkeypatch)
    run, *_ = brief_run
    samples = sorted(map(str, run.samples.glob("*")))[:2]
    assert main(["explain", str(run.folder), *samples, "--neighbours", "0", "--path", str(tmp_path / "run")]) == 0
    options = ["--path", str(tmp_path / "export")]
    assert main(["explain", str(run.export), *samples, str(tmp_path / "missing.png"), *options]) == 1
    assert f"{tmp_path / 'missing.png'}: cannot be read" in capsys.readouterr().out
    rollouts = [np.load(tmp_path / name / "rollout.npz")["rollout"] for name in ("run", "export")]
    np.testing.assert_allclose(rollouts[1], rollouts[0], atol=1e-4)
    assert {path.name for path in (tmp_path / "export").iterdir()} == {"explain.html", "rollout.png", "rollout.npz"}
    assert "has a rollout, but not" in (tmp_path / "export" / "explain.html").read_text(encoding="utf-8")
    assert main(["explain", str(run.export)]) == 2
    assert main(["explain", str(run.export), *samples, "--compare", str(run.folder)]) == 2
    errors = capsys.readouterr().err
    assert "contains no pictures" in errors
    assert "--compare works with a run" in errors
