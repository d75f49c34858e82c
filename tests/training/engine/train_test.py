"""Every setting of the fit takes effect."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.architectures import read_architecture
from tests.test_case import assert_close, randomize, to_numpy
from tests.training.fitting import build_linear_model, digits, fitted, linear_model
from training.data.dataset import Dataset
from training.data.loading import load_dataset
from training.data.sources import IndexedSource
from training.engine.models import build_model, description
from training.engine.train import export, save_model, train
from training.errors import InputError
from training.recipe.assignments import override
from training.recipe.config import to_dict
from training.runs.checkpoints import Checkpoints, RunState
from training.runs.folder import Run, program_path
from training.tasks.classification import Task


@pytest.fixture
def linear(on_arrays):
    with linear_model(eagerly=True):
        yield


FOUR_STEPS = "fit.batch_size=350"  # In an epoch.


@pytest.mark.usefixtures("linear")
def test_rows_of_the_history(brief_recipe):
    for durations, epochs, steps in (
        (["fit.steps=10", "fit.epochs=none", "fit.report_every=3 steps"], [1, 2, 3, 4], [3, 6, 9, 10]),
        (["fit.epochs=1", "fit.report_every=1.5 epochs"], [1], [4]),
    ):
        history = fitted(override(brief_recipe, [FOUR_STEPS, *durations])).state.history
        assert [row["epoch"] for row in history] == epochs
        assert [row["step"] for row in history] == steps
        assert all(set(row) == set(COLUMNS) for row in history)


COLUMNS = ("epoch", "step", "learning_rate", "loss", "accuracy", "val_loss", "val_accuracy")


def left_by(recipe, runs):
    """The rows of the history, {column: value}, and the final weights of a run."""

    def history_and_weights(task, dataset, run, weights, state):
        return state.history, weights

    return train(recipe, runs, on_finished=history_and_weights)[1]


@pytest.mark.slow
@pytest.mark.usefixtures("linear")
def test_the_moving_average_is_validated_and_kept(brief_recipe, tmp_path):
    recipe = override(brief_recipe, [FOUR_STEPS, "optimizer.ema=0.9", "fit.epochs=1", "fit.checkpoint_every=1 steps"])
    [row], averaged = left_by(recipe, tmp_path)
    [plain_row], plain = left_by(override(recipe, ["optimizer.ema=0"]), tmp_path)
    assert any(not np.array_equal(a, b) for a, b in zip(averaged, plain, strict=True))
    # The average does not change the training, so only the validation loss and accuracy differ.
    assert {name for name in COLUMNS if row[name] != plain_row[name]} == {"val_loss", "val_accuracy"}


@pytest.mark.usefixtures("linear")
def test_the_best_weights_are_kept_if_asked_for(brief_recipe, tmp_path):
    # The learning rate rises until the model is spoiled.
    bad = ["optimizer.learning_rate=100", "schedule.decay=constant", "schedule.warmup=90%", "fit.epochs=2"]
    recipe = override(brief_recipe, [*bad, FOUR_STEPS, "fit.report_every=2 steps"])
    kinds = {kind: left_by(override(recipe, [f"fit.final_weights={kind}"]), tmp_path) for kind in ("best", "last")}
    accuracies = [row["val_accuracy"] for row in kinds["best"][0]]
    assert accuracies.index(max(accuracies)) < len(accuracies) - 1
    images, labels = (array[-load_dataset(recipe.data).splits["validation"].size :] for array in digits())
    model = build_linear_model(recipe, 10)
    kept = []
    for _, weights in kinds.values():
        for variable, array in zip(model.variables, weights, strict=True):
            variable.assign(array)
        kept.append((to_numpy(model(images)).argmax(1) == labels.argmax(1)).mean())
    assert kept == pytest.approx([max(accuracies), accuracies[-1]], abs=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("on_arrays")
def test_fine_tuning_begins_with_the_weights_and_a_new_head(brief_recipe, tmp_path):
    """The weights are those of a model for three classes of larger images."""
    config = read_architecture(dict(brief_recipe.model.config.to_dict(), num_layers=2))
    source = randomize(keras_vit.ViT(config, input_shape=(12, 12, 1), classes=3), scale=0.1)
    keras_vit.save_weights(source, tmp_path / "vit.npz", "google")
    assignments = ["model.config=none", f"model.weights={tmp_path / 'vit.npz'}", "model.changes.num_heads=4"]
    assignments += ["model.changes.drop_path_rate=0.2", "model.freeze_up_to=encoder_block_0"]
    recipe = override(brief_recipe, [*assignments, "fit.epochs=none", "fit.steps=3"])
    model = build_model(recipe, 10)
    kernel = "encoder_block_1/attention/query/kernel"
    by_path = {variable.path: variable for variable in model.weights}
    np.testing.assert_array_equal(by_path[kernel], next(v for v in source.weights if v.path == kernel))
    assert not np.any(by_path["predictions/kernel"])
    assert model.get_layer("encoder_block_1").drop_path_rate == 0.2
    before = {path: np.array(variable) for path, variable in by_path.items()}
    after = {variable.path: np.array(variable) for variable in fitted(recipe, eagerly=True).model.weights}
    changed = {path.split("/")[0] for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {"encoder_block_1", "encoder_norm", "predictions"}


@pytest.fixture
def fine_tuning(brief_recipe, tmp_path):
    """A recipe that fine-tunes weights in a file, and the path of this file."""
    config = brief_recipe.model.config
    source = randomize(keras_vit.ViT(config, input_shape=(12, 12, 1), classes=3), scale=0.1)
    path = tmp_path / "vit.npz"
    keras_vit.save_weights(source, path, "google")
    heads = f"model.changes.num_heads={config.num_heads}"
    return override(brief_recipe, ["model.config=none", f"model.weights={path}", heads]), path


@pytest.mark.combination("the file of `model.weights` is deleted during the run", "the trained model is saved")
def test_the_trained_model_is_saved_without_reading_initial_weights(fine_tuning, tmp_path):
    recipe, path = fine_tuning
    fitted = randomize(build_model(recipe, 10, with_logits=True))
    path.unlink()
    weights = [np.array(variable) for variable in fitted.variables]
    dataset = Dataset(tuple("0123456789"), {})
    saved, learner = save_model(Task(recipe), dataset, Run(tmp_path), weights, RunState(description(fitted)))
    assert learner is saved
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1)).astype("float32")
    assert_close(saved(images), keras.ops.softmax(fitted(images)))
    configs = [model.get_layer("preprocessing").get_config() for model in (saved, fitted)]
    assert configs[0] == configs[1] | {"label_space": [*"0123456789"]}
    assert configs[0]["source"] == str(path)


@pytest.mark.slow
@pytest.mark.usefixtures("on_arrays")
@pytest.mark.combination("the file of `model.weights` is deleted, then the run is resumed", "the same weights")
def test_a_run_resumes_without_its_initial_weights(fine_tuning, tmp_path):
    recipe, path = fine_tuning
    recipe = override(recipe, ["fit.epochs=none", "fit.steps=2", "model.freeze_up_to=encoder_block_0"])
    run = Run(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    first = fitted(recipe, eagerly=True, run=run)
    # Checkpoints do not contain the mean and the standard deviation, so that older ones fit.
    assert len(Checkpoints(run.checkpoints).read_arrays(2)["weights"]) == len(first.model.variables) - 1
    path.unlink()
    second = fitted(recipe, eagerly=True, run=run)
    assert second.state.step == 2
    for resumed, trained in zip(second.model.variables, first.model.variables, strict=True):
        np.testing.assert_array_equal(resumed, trained)
    assert description(second.model) == description(first.model)


def test_weights_that_cannot_be_had_are_refused(brief_recipe):
    recipe = override(brief_recipe, ["model.config=none", "model.weights=absent.npz"])
    with pytest.raises(InputError, match=r"There is no file or folder 'absent\.npz'"):
        build_model(recipe, 10)


@pytest.mark.slow
@pytest.mark.usefixtures("linear")
def test_a_teacher_is_learned_from(brief_recipe, tmp_path):
    teacher = randomize(build_model(brief_recipe, 10))
    run, class_names = Run(tmp_path), [str(i) for i in range(10)]
    teacher.save(run.model)
    run.recipe.write_text(json.dumps({"recipe": to_dict(brief_recipe), "class_names": class_names}))
    with_teacher = [f"distillation.teacher={run.folder}", "distillation.weight=1"]
    taught, untaught = (fitted(override(brief_recipe, changes)) for changes in (with_teacher, []))
    answers = [model.predict(digits()[0], verbose=0).argmax(1) for model in (teacher, taught.model, untaught.model)]
    assert (answers[1] == answers[0]).mean() > (answers[2] == answers[0]).mean() + 0.1
    assert not any("teacher" in variable.path for variable in taught.model.variables)


@pytest.mark.usefixtures("linear")
def test_teachers_that_do_not_fit_are_refused(brief_recipe, tmp_path):
    path = tmp_path / "teacher.keras"
    recipe = override(brief_recipe, [f"distillation.teacher={path}"])
    larger = override(brief_recipe, ["model.input_shape=16,16,1"])
    of_normalised = keras_vit.ViT(recipe.model.config, input_shape=(8, 8, 1), classes=10)
    unknown = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    for teacher, message in (
        (build_linear_model(recipe, 3), "3 classes, which are not"),
        (build_linear_model(larger, 10), "model.input_shape=16,16,1"),
        (of_normalised, "expects normalised pixels"),
        (unknown, "A model of keras_vit has one Preprocessing layer"),
    ):
        teacher.save(path)
        with pytest.raises(InputError, match=message):
            fitted(recipe)


def test_runs_that_cannot_be_kept_are_refused_before_any_work(brief_recipe, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    for runs in ("file", "dangling"):
        with pytest.raises(InputError, match=r"cannot be made.*--runs"):
            train(recipe=brief_recipe, runs=tmp_path / runs)


def test_folders_that_are_no_runs_or_another_recipes_are_refused(brief_recipe, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"contains other files: thesis\.tex"):
        train(brief_recipe, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    begun = tmp_path / "begun"
    begun.mkdir()
    facts = {"recipe": to_dict(brief_recipe)}
    Run(begun).recipe.write_text(json.dumps(facts))
    other = override(brief_recipe, ["optimizer.learning_rate=0.5", "fit.epochs=3"])
    differences = r"fit\.epochs: was 2, is 3\n  optimizer\.learning_rate: was 0\.002, is 0\.5"
    with pytest.raises(InputError, match=differences):
        train(other, folder=begun)
    Run(begun).recipe.write_text(json.dumps(facts | {"result": {}}))
    run, evaluation = train(brief_recipe, folder=begun)
    assert (run, evaluation) == (Run(begun), None)
    assert f"run={begun} is finished" in capsys.readouterr().out


@pytest.mark.combination("a training that fails before its first checkpoint", "no folder is left")
def test_a_failed_run_leaves_no_folder(brief_recipe, tmp_path, monkeypatch, capsys):
    dataset = Dataset(("ant", "bee"), dict.fromkeys(("train", "validation", "test"), IndexedSource(5, None)))
    monkeypatch.setattr(Task, "load", lambda self, record: dataset)
    monkeypatch.setattr("training.runs.folder.git_state", lambda: None)

    def fail(folder, error, *files):
        def fitting(task, dataset, engine, run):
            for path in (run.tensorboard / "events", *(run.folder / name for name in files)):
                path.touch()
            raise error

        monkeypatch.setattr("training.engine.train.Fitting", fitting)
        train(brief_recipe, tmp_path / "runs", folder)

    existing, new = tmp_path / "existing", tmp_path / "new"
    existing.mkdir()
    for folder, files, is_kept in (
        *((new / "0", (), False), (new / "1", ["of the user"], True), (new / "2", ["history.csv"], True)),
        (existing, (), True),
    ):
        with pytest.raises(InputError, match="It is too large"):
            fail(folder, InputError("It is too large."), *files)
        assert folder.exists() == is_kept
    assert not list(existing.iterdir())
    fail(None, KeyboardInterrupt())
    assert not list((tmp_path / "runs").iterdir())
    assert "Stopped. Nothing was trained yet.\n" in capsys.readouterr().out


def test_a_run_outlives_an_export_that_is_refused(brief_recipe, tmp_path, monkeypatch, capsys):
    def refuse(*arguments, **options):
        raise ValueError("What was written answers otherwise than the model.")

    monkeypatch.setattr(keras_vit, "export_saved_model", refuse)
    assert not export(brief_recipe, Run(tmp_path / "my run"), None, ["a", "b"], [])
    printed = capsys.readouterr().out
    assert "The model is not exported: What was written answers otherwise" in printed
    assert f"{program_path()} -m training export '{tmp_path / 'my run'}' --help" in printed


def test_splits_that_a_run_needs_are_asked_for_before_it_begins(brief_recipe, tmp_path, monkeypatch):
    for splits, message in (
        (("test", "validation"), r"has no train split\. It has: test, validation"),
        (("train", "validation"), r"has no test split"),
        (("train", "test"), r"fit\.final_weights=best needs validation images, but there are none"),
    ):
        dataset = Dataset(("ant", "bee"), dict.fromkeys(splits, IndexedSource(5, None)))
        monkeypatch.setattr(Task, "load", lambda self, record, dataset=dataset: dataset)
        with pytest.raises(InputError, match=message):
            train(override(brief_recipe, ["fit.final_weights=best"]), tmp_path / "runs")
        assert not list((tmp_path / "runs").iterdir())
