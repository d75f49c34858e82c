"""What happens between the steps of a run: it is stopped at the worst of moments, and goes on as if it had not been."""

import errno
import fcntl
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import train as module
from training.assignments import override
from training.data import load_dataset
from training.errors import InputError
from training.runs import Run, hold, program_path
from training.tasks import classification
from training.train import Fitting, train

# Seven steps and three batches of validation in an epoch, and everything that has a state.
CHANGES = ["fit.batch_size=150", "optimizer.ema=0.9", "model.config.dropout_rate=0.1", "data.validation_fraction=0.3"]


@pytest.fixture(scope="module")
def recipe(brief_recipe):
    return override(brief_recipe, CHANGES)


@pytest.fixture(scope="module", autouse=True)
def without_export():
    """What takes time, and is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "export", lambda *arguments: False)
        patch.setattr(module, "predict_elsewhere", lambda *arguments: None)
        yield


@pytest.fixture(scope="module")
def undisturbed(recipe, tmp_path_factory):
    run, evaluation = train(recipe, tmp_path_factory.mktemp("runs"))
    return run, evaluation


class Interruption(keras.callbacks.Callback):
    """Asks a run to stop at a moment: a hook of Keras's callbacks, and the step at which it is called."""

    def __init__(self, fitting, hook, step):
        super().__init__()

        def act(*arguments, **keywords):
            if fitting.keeper.step == step:
                fitting.stop.requested = True

        setattr(self, hook, act)


def points(folder, tag):
    """Steps of TensorBoard's points of a kind."""
    return [
        event.step
        for path in sorted(folder.rglob("events*"))
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == tag
    ]


@pytest.mark.parametrize(
    ("hook", "step", "saved"),
    [
        ("on_train_batch_end", 3, 4),  # It is heard at the next step.
        pytest.param("on_train_batch_end", 6, 7, marks=pytest.mark.slow),
        # The last step of an epoch, before its validation,
        pytest.param("on_train_batch_end", 7, 7, marks=pytest.mark.slow),
        pytest.param("on_test_batch_end", 7, 7, marks=pytest.mark.slow),  # and in it.
        pytest.param("on_test_batch_end", 14, 14, marks=pytest.mark.slow),  # The last of all.
    ],
)
def test_a_stop_saves_and_the_run_goes_on(recipe, undisturbed, tmp_path, monkeypatch, capsys, hook, step, saved):
    usual = Fitting._chief_callbacks
    monkeypatch.setattr(Fitting, "_chief_callbacks", lambda self: [*usual(self), Interruption(self, hook, step)])
    run, evaluation = train(recipe, folder=tmp_path / "run")
    assert evaluation is None
    assert f"Stopped after step {saved}, which is saved" in capsys.readouterr().out
    assert f"step-{saved:09d}.npz" in [path.name for path in run.checkpoints.iterdir()]
    monkeypatch.setattr(Fitting, "_chief_callbacks", usual)
    _, evaluation = train(recipe, folder=tmp_path / "run")
    assert f"Going on from step {saved}." in capsys.readouterr().out
    assert run.history.read_bytes() == undisturbed[0].history.read_bytes()
    np.testing.assert_array_equal(evaluation.predictions, undisturbed[1].predictions)
    assert evaluation.loss == undisturbed[1].loss
    assert points(run.tensorboard / "validation", "epoch_loss") == [0, 1]
    assert points(run.tensorboard / "train", "epoch_loss") == [0, 1]


def test_a_full_disk_loses_one_interval(recipe, undisturbed, tmp_path, monkeypatch):
    """The disk is full at the end of the second epoch, and has room again at the next start."""
    usual, written = np.savez, []

    def save(file, **arrays):
        written.append(file.name)
        if "000014" in file.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        usual(file, **arrays)

    monkeypatch.setattr(np, "savez", save)
    with pytest.raises(InputError) as error:
        train(recipe, folder=tmp_path)
    message = str(error.value)
    assert "The checkpoint of step 14 cannot be written" in message
    assert "No space left on device. The last good one is that of step 7." in message
    assert f"To go on from there: {program_path()} -m training train run={tmp_path}" in message
    monkeypatch.setattr(np, "savez", usual)
    train(recipe, folder=tmp_path)
    assert Run(tmp_path).history.read_bytes() == undisturbed[0].history.read_bytes()


@pytest.mark.slow
def test_a_signal_while_the_result_is_written(recipe, undisturbed, tmp_path, monkeypatch, capsys):
    def terminated(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(classification, "write_report", terminated)
    _, evaluation = train(recipe, folder=tmp_path)
    assert evaluation is None
    assert f"Stopped. To go on: {program_path()} -m training train run={tmp_path}" in capsys.readouterr().out
    monkeypatch.undo()
    _, evaluation = train(recipe, folder=tmp_path)
    assert evaluation.loss == undisturbed[1].loss
    assert Run(tmp_path).report.is_file()


@pytest.mark.slow
def test_a_damaged_best_checkpoint_gives_way_to_the_next(recipe, tmp_path, monkeypatch, capsys):
    """The weights of the best validation are asked for: of the first epoch, before the learning rate spoils them."""
    spoiled = ["optimizer.learning_rate=3", "optimizer.ema=0", "schedule.warmup=20 steps", "fit.final_weights=best"]
    recipe = override(recipe, [*spoiled, "fit.epochs=3"])
    monkeypatch.setattr(module, "finish", terminated := _Terminated())
    train(recipe, folder=tmp_path)
    rows = {row["step"]: row["val_accuracy"] for row in terminated.keeper.history}
    first, second = sorted(rows, key=rows.get, reverse=True)[:2]
    assert terminated.keeper.best_step == first == 7
    path = Run(tmp_path).checkpoints / f"step-{first:09d}.npz"
    path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    train(recipe, folder=tmp_path)
    assert f"{path.name} is damaged and removed" in capsys.readouterr().out
    assert terminated.keeper.best_step == second


class _Terminated:
    """Stands for `finish`, and stops before anything is written."""

    def __call__(self, recipe, dataset, run, weights, keeper):
        self.keeper = keeper
        raise KeyboardInterrupt


def test_weights_that_are_not_finite_are_not_saved(recipe, tmp_path):
    """The loss is that before the step: it is the weights that show first that the step was too long."""
    wrong = ["optimizer.kind=sgd", "optimizer.learning_rate=1e30", "optimizer.clip_norm=none", "schedule.warmup=0%"]
    message = r"not finite at step 2, with a learning rate of .*last good checkpoint is that of step 1\."
    with pytest.raises(InputError, match=message):
        train(override(recipe, [*wrong, "fit.checkpoint_every=1 steps"]), folder=tmp_path)
    [path] = Run(tmp_path).checkpoints.iterdir()
    arrays = np.load(path)
    assert all(np.isfinite(arrays[name]).all() for name in arrays if name.startswith("weights"))


def test_one_process_at_a_time(recipe, tmp_path):
    dataset, engine = load_dataset(recipe.data), module.distribution.Engine(recipe.distribution)
    run = module.open_run(recipe, dataset, None, tmp_path, engine)
    with hold(run), pytest.raises(InputError, match="is being worked on by another process"):
        train(recipe, folder=tmp_path)
    with hold(run):
        pass


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, capsys):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    Run(tmp_path).recipe.write_text("{}")
    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold(Run(tmp_path)):
        assert "cannot be locked: No locks available" in capsys.readouterr().out


@pytest.mark.slow
def test_a_signal_that_nobody_heard_in_time_stops_the_run(recipe, undisturbed, tmp_path, monkeypatch, capsys):
    """One that comes while the last checkpoint is written."""
    usual = Fitting._fit_segment

    def fit_segment(fitting, *arguments):
        usual(fitting, *arguments)
        fitting.stop.requested = True

    monkeypatch.setattr(Fitting, "_fit_segment", fit_segment)
    _, evaluation = train(recipe, folder=tmp_path)
    assert evaluation is None
    assert "Stopped after step 14, which is saved" in capsys.readouterr().out
    monkeypatch.undo()
    _, evaluation = train(recipe, folder=tmp_path)
    assert evaluation.loss == undisturbed[1].loss


def test_images_are_counted_without_padding(recipe):
    dataset = load_dataset(recipe.data)
    fitting = Fitting(recipe, dataset, module.distribution.Engine(recipe.distribution))
    assert fitting.intervals.images * 7 == dataset.splits["train"].size < 7 * 150
