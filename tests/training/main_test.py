"""A run, end to end: what it leaves, that it can be repeated, and the commands as a person types them."""

import csv
import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.decoding import image_decoder
from tests.training.fitting import evaluation_images, fitted
from training import recipes
from training.__main__ import main
from training.assignments import override
from training.checkpoints import Checkpoints
from training.config import to_dict
from training.data import load_dataset
from training.models import build_model
from training.train import train


@pytest.fixture(scope="module")
def brief_run(brief_recipe, tmp_path_factory):
    """The folder of a run, its evaluation, and what its recipe.json says."""
    run, evaluation = train(brief_recipe, tmp_path_factory.mktemp("runs"))
    return run, evaluation, json.loads(run.recipe.read_text())


def run_program(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "training", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


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
    assert {path.name for path in run.checkpoints.iterdir()} == {"step-000000021.npz", "step-000000042.npz"}
    assert {"loss.png", "accuracy.png", "learning_rate.png", "confusion_matrix.png"} <= {
        path.name for path in run.figures.iterdir()
    }
    assert list(run.tensorboard.rglob("events.out.tfevents*"))
    rows = list(csv.DictReader(run.history.read_text().splitlines()))
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "21"), ("2", "42")]
    assert set(rows[0]) == {"epoch", "step", "learning_rate", "accuracy", "loss", "val_accuracy", "val_loss"}
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
    images, _ = evaluation_images(load_dataset(brief_recipe.data), "test", image_decoder(model), brief_recipe)
    np.testing.assert_allclose(model.predict(images, verbose=0), evaluation.probabilities, atol=1e-6)
    last = build_model(brief_recipe, 10)
    for variable, array in zip(last.variables, Checkpoints(run.checkpoints).newest().state["weights"], strict=True):
        variable.assign(array)
    np.testing.assert_allclose(last.predict(images, verbose=0), evaluation.probabilities, atol=1e-6)
    pixels = tf.saved_model.load(str(run.export / "1")).signatures["predict_pixels"]
    served = pixels(images=tf.constant(images))["probabilities"]
    np.testing.assert_allclose(served, evaluation.probabilities, atol=1e-5)


def test_same_seed_gives_the_same_history_to_the_last_digit(brief_run, brief_recipe):
    run, _, _ = brief_run
    rows = list(csv.DictReader(run.history.read_text().splitlines()))
    again = fitted(brief_recipe).keeper.history
    assert [{name: str(value) for name, value in row.items()} for row in again] == rows


def test_wrong_assignment_is_refused_before_any_work(tmp_path):
    result = run_program("train", "digits", "fit.bach_size=3", "--runs", tmp_path / "runs")
    assert result.returncode == 2
    assert "fit.batch_size" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()


def test_another_backend_is_refused(tmp_path):
    result = run_program("train", KERAS_BACKEND="torch")
    assert result.returncode == 2
    assert "TensorFlow or JAX. Received: KERAS_BACKEND=torch" in result.stderr


def test_show_prints_the_recipe_as_changed(capsys):
    assert not main(["train", "fit.epochs=7", "--show"])
    assert "fit.epochs=7 " in capsys.readouterr().out


def test_predict_names_classes_and_refuses_what_is_no_image(brief_run, tmp_path, capsys):
    run, _, _ = brief_run
    images = sorted(run.samples.iterdir())
    assert main(["predict", str(run.folder), *map(str, images), "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [str(image) for image in images]
    assert all(line.count("%") == 3 for line in lines)
    text = tmp_path / "notes.txt"
    text.write_text("no image")
    assert main(["predict", str(run.export), str(text), str(images[0]), str(tmp_path), str(tmp_path / "absent")]) == 1
    output = capsys.readouterr().out.splitlines()
    assert output[0] == f"{text}: is not an image that can be decoded (JPEG, PNG, GIF, BMP or WebP)"
    assert output[1].startswith(f"{images[0]}: ")
    assert output[1].count("%") == 5
    assert "directory" in output[2]
    assert "No such file" in output[3]


def test_predict_needs_tensorflow_alone(brief_run):
    run, _, _ = brief_run
    code = (
        "import sys; from training.__main__ import main; main(sys.argv[1:]); "
        "assert 'tensorflow' in sys.modules; assert 'keras_vit' not in sys.modules"
    )
    image = next(run.samples.iterdir())
    subprocess.run([sys.executable, "-c", code, "predict", str(run.export), str(image)], check=True)


def test_predict_refuses_what_is_no_model(tmp_path, brief_run, capsys):
    run, _, _ = brief_run
    assert main(["predict", str(tmp_path), "image.png"]) == 2
    assert main(["predict", str(run.model), "image.png"]) == 2
    assert "python -m training export" in capsys.readouterr().err


def test_evaluate_repeats_the_runs_accuracy(brief_run, capsys):
    run, evaluation, _ = brief_run
    assert not main(["evaluate", str(run.folder)])
    assert f"{evaluation.accuracy:.2%}" in capsys.readouterr().out
    assert not main(["evaluate", str(run.folder), "--split", "validation", "fit.batch_size=7"])
    assert "validation split" in capsys.readouterr().out
    assert main(["evaluate", str(run.folder / "absent")]) == 2
    assert "There is no file or folder" in capsys.readouterr().err
    for assignment in ("optimizer.learning_rate=1", "data.test_fraction=0.5", "data.validation_fraction=0.5"):
        assert main(["evaluate", str(run.folder), assignment]) == 2
        assert "cannot be changed for a trained model" in capsys.readouterr().err


def test_evaluate_refuses_other_classes(brief_run, tmp_path, capsys):
    run, _, facts = brief_run
    other = tmp_path / "run"
    other.mkdir()
    (other / "model.keras").symlink_to(run.model)
    (other / "recipe.json").write_text(json.dumps(facts | {"class_names": ["ant", "bee"]}))
    assert main(["evaluate", str(other)]) == 2
    assert "The model knows the classes ant, bee; the data set has 0, 1" in capsys.readouterr().err


def test_assignments_may_stand_behind_options(capsys):
    assert not main(["train", "digits", "--show", "fit.epochs=7"])
    assert "fit.epochs=7 " in capsys.readouterr().out
    for wrong in (
        ["train", "--shwo"],
        ["train", "digits", "fit.epochs=7", "--seed=3"],
        ["predict", "run", "x.png", "--to"],
    ):
        with pytest.raises(SystemExit):
            main(wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        ["duplicates", "data.dataset=folder", "data.directory=photos"],
        ["records", "data.dataset=mnist", "--to", "shards"],
    ],
)
def test_a_recipe_that_is_needed_is_asked_for(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert f"error: name a RECIPE before {arguments[1]}: " in capsys.readouterr().err


def test_export_writes_the_next_version(brief_run, tmp_path, capsys):
    run, _, _ = brief_run
    assert not main(["export", str(run.folder), "--path", str(tmp_path / "served")])
    assert not main(["export", str(run.model), "--path", str(tmp_path / "served")])
    assert (tmp_path / "served" / "2" / "saved_model.pb").is_file()
    assert "Compared with the model on 8 images: largest difference of a probability" in capsys.readouterr().out
    assert json.loads((tmp_path / "served" / "1" / "keras_vit.json").read_text())["name"] == "digits"
    assert main(["export", str(run.folder), "--path", str(tmp_path / "served"), "--version", "2"]) == 2
    assert "exists. Give another version, or --overwrite to replace it" in capsys.readouterr().err
    names = tmp_path / "names.txt"
    names.write_text("one\ntwo\n")
    assert main(["export", str(run.folder), "--path", str(tmp_path / "named"), "--labels", str(names)]) == 2
    assert "10 classes" in capsys.readouterr().err
    names.write_text("".join(f"digit {i}\n" for i in range(10)))
    assert not main(["export", str(run.folder), "--path", str(tmp_path / "named"), "--labels", str(names)])
    capsys.readouterr()
    main(["predict", str(tmp_path / "named"), str(next(run.samples.iterdir())), "--top", "1"])
    assert ": digit " in capsys.readouterr().out


def test_export_for_other_runtimes(brief_run, tmp_path, capsys):
    run, _, _ = brief_run
    export = ["export", str(run.folder), "--path", str(tmp_path), "--format", "litert"]
    assert not main(export)
    assert "Compared with the model on 8 images" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["digits.tflite"]
    assert main([*export, "--name", "small", "--precision", "int8", "--version", "3"]) == 2
    assert "--version goes with --format=saved_model. Received: --format=litert" in capsys.readouterr().err
    assert main([*export, "--name", "small", "--precision", "bfloat16"]) == 2
    assert "precision of the format 'litert' must be one of" in capsys.readouterr().err
    assert main([*export, "--name", "small", "--image-size", "8", "8"]) == 2
    assert "--image-size goes with --format=saved_model" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "plan", "records", "evaluate", "predict", "export"])
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert "usage: python -m training" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fewshot", "a_run", "--knn", "data.dataset=mnist"], "no whole number of 1 or more. Changes of fields stand"),
        (["fewshot", "a_run", "--shots", "5", "data.dataset=mnist"], "no whole number of 1 or more. Changes of fields"),
        (["explain", "a_run", "--neighbours", "-1"], "argument --neighbours: -1 is no whole number of 0 or more\n"),
        (["predict", "a_run", "x.png", "--top", "0"], "argument --top: 0 is no whole number of 1 or more\n"),
    ],
)
def test_a_number_that_is_none_is_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_records_writes_shards_that_can_be_trained_on(brief_recipe, tmp_path, capsys):
    directory = brief_recipe.data.tfds_directory
    assert not main(["records", "digits", f"data.tfds_directory={directory}", "--to", str(tmp_path / "shards")])
    output = capsys.readouterr().out
    assert f"4 shards in {tmp_path / 'shards'}" in output
    [line] = [line for line in output.splitlines() if "data.dataset=records" in line]
    recipe = override(brief_recipe, ["data.tfds_directory=none", *line.split()])
    assert load_dataset(recipe.data).splits["train"].size == 1293


def test_explains_a_run_and_what_is_left_of_it_in_its_export(brief_run, tmp_path, capsys):
    run, _, _ = brief_run
    samples = sorted(map(str, run.samples.glob("*")))[:2]
    assert main(["explain", str(run.folder), *samples, "--neighbours", "0", "--path", str(tmp_path / "run")]) == 0
    options = ["--path", str(tmp_path / "export")]
    assert main(["explain", str(run.export), *samples, str(tmp_path / "missing.png"), *options]) == 1
    assert f"{tmp_path / 'missing.png'}: cannot be read" in capsys.readouterr().out
    rollouts = [np.load(tmp_path / name / "rollout.npz")["rollout"] for name in ("run", "export")]
    np.testing.assert_allclose(rollouts[1], rollouts[0], atol=1e-4)
    assert {path.name for path in (tmp_path / "export").iterdir()} == {"explain.html", "rollout.png", "rollout.npz"}
    assert "gives its rollout, and not" in (tmp_path / "export" / "explain.html").read_text(encoding="utf-8")
    assert main(["explain", str(run.export)]) == 2
    assert main(["explain", str(run.export), *samples, "--compare", str(run.folder)]) == 2
    errors = capsys.readouterr().err
    assert "has no pictures of its own" in errors
    assert "--compare goes with a run" in errors
