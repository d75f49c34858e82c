"""A run that is stopped between any two steps resumes as if it had not been stopped.

The model is a linear classifier, and its images come from arrays. On TensorFlow, steps are not compiled, because
compilation takes longer than a few steps. `survival_test.py` compiles.
"""

import errno
import functools
import os
import signal
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.test_case import TENSORFLOW
from tests.training.fitting import array_pipeline, linear_model
from training.data.loading import load_dataset
from training.engine import events, fitting
from training.engine.distribution import Engine
from training.engine.stopping import StopRequest
from training.engine.train import train
from training.errors import InputError
from training.recipe.assignments import override
from training.runs.checkpoints import RunState
from training.runs.folder import Run, add_result, hold, open_run, program_path
from training.tasks.task import Metric

# An epoch has three steps and two validation batches. Everything that has a state is included.
CHANGES = ["fit.batch_size=350", "optimizer.ema=0.9", "data.validation_fraction=0.3"]
SEVEN_STEPS = "fit.batch_size=150"  # In an epoch with validation.
SPOILED = [
    *("optimizer.learning_rate=30", "optimizer.ema=0", "schedule.decay=constant", "schedule.warmup=20 steps"),
    *("fit.epochs=3", SEVEN_STEPS),
]
TOO_LONG = [
    *("optimizer.kind=sgd", "optimizer.learning_rate=1000", "optimizer.weight_decay=1e20", "schedule.warmup=0%"),
    SEVEN_STEPS,
]


@pytest.fixture(scope="module")
def recipe(brief_recipe):
    return override(brief_recipe, CHANGES)


@pytest.fixture(scope="module", autouse=True)
def simplified():
    with array_pipeline(), linear_model(eagerly=TENSORFLOW):
        yield


def train_in(folder, recipe, on_finished=None):
    """Trains in a folder; returns its `Run` and the final weights, or `None` if training was stopped."""
    on_finished = on_finished or (lambda task, dataset, run, weights, state: weights)
    return train(recipe, folder=folder, on_finished=on_finished)


@pytest.fixture(scope="module")
def undisturbed(recipe, tmp_path_factory):
    return train_in(tmp_path_factory.mktemp("undisturbed"), recipe)


def assert_same_run(one, other):
    """Each argument is a pair of a `Run` and its weights."""
    assert one[0].history.read_bytes() == other[0].history.read_bytes()
    for array, other_array in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(array, other_array)


class InterruptedEvents(events.Events):
    """Requests a stop at the end of a given hook of Keras's callbacks at a given step."""

    def __init__(self, fitting, hook, step):
        super().__init__(fitting)
        usual = getattr(self, hook)

        def act(*arguments, **keywords):
            usual(*arguments, **keywords)
            if fitting.state.step == step and not fitting.stop.requested:
                os.kill(os.getpid(), signal.SIGTERM)

        setattr(self, hook, act)


def points(folder, tag):
    """The steps of TensorBoard's points with a given tag, in the order of writing."""
    paths = folder.rglob("events*")
    events = [event for path in paths for event in tf.compat.v1.train.summary_iterator(str(path))]
    events.sort(key=lambda event: event.wall_time)  # The file names are only precise to the second.
    return [event.step for event in events for value in event.summary.value if value.tag == tag]


@pytest.mark.combination("a run is stopped by a signal and resumed", "equal to an undisturbed run, bit for bit")
@pytest.mark.parametrize(
    ("hook", "step", "saved"),
    [
        ("on_train_batch_end", 1, 2),  # The request takes effect at the next step.
        # The last step of an epoch, before its validation.
        pytest.param("on_train_batch_end", 3, 3, marks=pytest.mark.slow),
        pytest.param("on_test_batch_end", 3, 3, marks=pytest.mark.slow),  # During the validation of that epoch.
        pytest.param("on_test_batch_end", 6, 6, marks=pytest.mark.slow),  # During the last validation.
        ("on_train_end", 6, 6),  # The run has ended, so the request has no effect.
    ],
)
def test_a_stop_saves_and_the_run_goes_on(recipe, undisturbed, tmp_path, monkeypatch, capsys, hook, step, saved):
    with monkeypatch.context() as interrupted:
        interrupted.setattr(fitting, "Events", lambda fitting: InterruptedEvents(fitting, hook, step))
        run, weights = train_in(tmp_path / "run", recipe)
    assert weights is None
    assert f"Stopped after step {saved}, which is saved" in capsys.readouterr().out
    assert f"step-{saved:09d}.npz" in [path.name for path in run.checkpoints.iterdir()]
    finished = train_in(tmp_path / "run", recipe)
    assert f"Resuming from step {saved}." in capsys.readouterr().out
    assert_same_run(finished, undisturbed)
    assert points(run.tensorboard / "validation", "epoch_loss") == [0, 1]
    assert points(run.tensorboard / "train", "epoch_loss") == [0, 1]


def test_a_full_disk_loses_one_interval(recipe, undisturbed, tmp_path, monkeypatch):
    """The disk is full at the end of the second epoch and has space at the next start."""
    usual = np.savez

    def save(file, **arrays):
        if "000006" in file.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        usual(file, **arrays)

    monkeypatch.setattr(np, "savez", save)
    with pytest.raises(InputError) as error:
        train_in(tmp_path, recipe)
    message = str(error.value)
    assert "The checkpoint of step 6 cannot be written" in message
    assert "No space left on device. The last good one is from step 3." in message
    assert f"To resume: {program_path()} -m training train run={tmp_path}" in message
    monkeypatch.setattr(np, "savez", usual)
    assert_same_run(train_in(tmp_path, recipe), undisturbed)


def test_a_signal_while_the_result_is_written(recipe, undisturbed, tmp_path, capsys):
    def terminated(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)

    _, weights = train_in(tmp_path, recipe, terminated)
    assert weights is None
    assert f"Stopped. To resume: {program_path()} -m training train run={tmp_path}" in capsys.readouterr().out
    assert_same_run(train_in(tmp_path, recipe), undisturbed)


def test_a_damaged_best_checkpoint_gives_way_to_the_next(recipe, tmp_path, monkeypatch, capsys):
    """The run keeps its best weights, from the first epoch. Then the learning rate spoils them."""
    recipe = override(recipe, [*SPOILED, "fit.final_weights=best"])

    _, state = train_in(tmp_path, recipe, lambda task, dataset, run, weights, state: state)
    rows = {row["step"]: row["val_accuracy"] for row in state.history}
    first, second = sorted(rows, key=rows.get, reverse=True)[:2]
    assert state.best_step == first == 7
    path = Run(tmp_path).checkpoints / f"step-{first:09d}.npz"
    path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    _, state = train_in(tmp_path, recipe, lambda task, dataset, run, weights, state: state)
    assert f"{path.name} is damaged and was removed" in capsys.readouterr().out
    assert state.best_step == second


def test_weights_that_are_not_finite_are_not_saved(recipe, tmp_path):
    """The loss is computed before the step, so only the weights show that the step was too long."""
    message = r"not finite at step 2, with a learning rate of .*last good checkpoint is that of step 1\."
    with pytest.raises(InputError, match=message):
        train_in(tmp_path, override(recipe, [*TOO_LONG, "fit.checkpoint_every=1 steps"]))
    [path] = Run(tmp_path).checkpoints.iterdir()
    arrays = np.load(path)
    assert all(np.isfinite(arrays[name]).all() for name in arrays if name.startswith("weights"))


@pytest.mark.each_backend
@pytest.mark.parametrize(
    ("seconds_between_lines", "step", "steps"),
    [
        (60, 7, "2 to 7"),  # The loss is read at the first step, for the first line of progress, and at the last step.
        (0, 4, "3 to 4"),  # The line of progress of step 3 shows it, and the next step raises the error.
    ],
)
def test_a_loss_that_is_not_finite_ends_a_run_when_it_is_read(
    recipe, tmp_path, monkeypatch, seconds_between_lines, step, steps
):
    monkeypatch.setitem(events._SECONDS_BETWEEN_LINES, False, seconds_between_lines)
    message = rf"The loss is nan at step {step}, .*in one of the steps {steps}\. .*There is no checkpoint yet\."
    with pytest.raises(InputError, match=message) as caught:
        train_in(tmp_path, override(recipe, TOO_LONG))
    assert "To resume" not in str(caught.value)
    assert not list(tmp_path.iterdir())


class Late:
    """A metric that the simulated device has computed only at a certain time. Reading it waits for this time."""

    def __init__(self, value, device, step):
        self.value, self.device, self.step = value, device, step

    def block_until_ready(self):
        self.device.now = max(self.device.now, self.device.end_of[self.step])

    def __float__(self):
        self.block_until_ready()
        self.device.read.add(self.step)
        return float(self.value)


class SlowDevice:
    """Simulates a device that needs 20 seconds for a step, while the host needs 3 seconds to start one."""

    def __init__(self):
        self.now, self.end_of, self.read, self.most_ahead = 0.0, [0.0], set(), 0

    def start(self, metrics):
        self.now += 3
        step = len(self.end_of)
        self.end_of.append(max(self.now, self.end_of[-1]) + 20)
        self.most_ahead = max(self.most_ahead, sum(end > self.now for end in self.end_of))
        return {name: Late(value, self, step) for name, value in metrics.items()}


@pytest.fixture
def device(monkeypatch):
    """Makes the training steps of runs return metrics of a `SlowDevice`, whose time is the time of the callbacks."""
    device = SlowDevice()

    class OnDevice(fitting.TrainedModel):
        def make_train_function(self, force=False):
            if self.train_function is None:
                super().make_train_function(force)
                self.train_function = functools.partial(start, self.train_function)

    def start(step, *arguments):
        result = step(*arguments)
        return (device.start(result[0]), *result[1:]) if isinstance(result, tuple) else device.start(result)

    monkeypatch.setattr(fitting, "TrainedModel", OnDevice)
    monkeypatch.setattr(events, "time", types.SimpleNamespace(monotonic=lambda: device.now))
    return device


@pytest.mark.each_backend
def test_the_host_does_not_wait_for_each_step(recipe, device, tmp_path):
    """Metrics are read for the rate and the rows of two intervals, and for checkpoints at each fourth step."""

    def throughput_of(task, dataset, run, weights, state):
        return state.throughput, dataset.splits["train"].size

    changes = ["fit.checkpoint_every=4 steps", "fit.report_every=9 steps", "fit.epochs=none", "fit.steps=18"]
    recipe = override(recipe, [*changes, SEVEN_STEPS, "optimizer.ema=0", "data.validation_fraction=0"])
    _, (throughput, size) = train_in(tmp_path, recipe, throughput_of)
    assert device.read == {1, 4, 8, 9, 10, 12, 16, 18}
    # A step takes 20 seconds. After each step that was read, the device waits 3 seconds for the next step.
    assert device.end_of[-1] == 18 * 20 + 8 * 3
    assert size < 150 * 10  # Padding does not count.
    assert throughput == [9 * (size / 10) / (9 * 20 + 4 * 3)] * 2
    if keras.backend.backend() == "jax":
        assert device.most_ahead == 3  # Two earlier steps, and the one that has just been started.


def test_one_process_at_a_time(recipe, tmp_path):
    """The folder is locked even before anything is written, and while the recipe is replaced."""
    run = Run(tmp_path)
    with hold(run):
        with pytest.raises(InputError, match="is in use by another process"):
            train_in(tmp_path, recipe)
        assert [path.name for path in tmp_path.iterdir()] == [run.lock.name]
        open_run(recipe, load_dataset(recipe.data), None, tmp_path, Engine(recipe.distribution))
        with pytest.raises(InputError, match="is in use by another process"):
            train_in(tmp_path, recipe)
    assert not run.lock.exists()
    with hold(run):
        pass


def test_what_another_process_began_or_finished_meanwhile_is_not_gone_on_with(recipe, tmp_path):
    """Another process may begin or finish the run between the first check of the folder and the lock."""
    arguments = load_dataset(recipe.data), None, tmp_path, Engine(recipe.distribution)
    run = open_run(recipe, *arguments)
    with pytest.raises(InputError, match=r"was started with another recipe:\n  seed: was 0, is 7"):
        open_run(override(recipe, ["seed=7"]), *arguments)
    add_result(run)
    with pytest.raises(InputError, match="was finished by another process in the meantime"):
        open_run(recipe, *arguments)


def test_progress_tells_the_rate_and_the_time_that_is_left(capsys, monkeypatch):
    """The first step compiles, so the rate is that of the steps after it: four in 100 seconds."""
    fitting = types.SimpleNamespace(
        **{"total_steps": 100, "images_per_step": 1000, "printed": 0.0, "timed": None, "finite_step": 0},
        **{"task": types.SimpleNamespace(metric=Metric("accuracy", "accuracy")), "schedule": lambda step: step / 1e4},
        **{"engine": Engine(None), "state": RunState({}), "stop": StopRequest()},
    )
    for fitting.state.step, now in ((10, 1000.0), (14, 1100.0)):
        monkeypatch.setattr(events, "time", types.SimpleNamespace(monotonic=lambda now=now: now))
        events.print_progress(fitting, {"loss": 0.5, "accuracy": 0.25})
    _, line = capsys.readouterr().out.splitlines()
    expected = "step 14/100  loss 0.5000  accuracy 25.0%  learning rate 1.30e-03  40 images/s  0:35:50 left"
    assert line == expected
