"""Callbacks of a run: checkpoints, history, progress, and a stop on request.

An accelerator computes a step while `fit` prepares the next one, unless a metric of the step is read. Reading waits for
the step. The callbacks therefore read metrics only for a row of the history, a checkpoint or a line of progress.
"""

import collections
import contextlib
import dataclasses
import datetime
import math
import signal
import sys
import time

import keras
import numpy as np

from keras_vit.graph import all_layers
from keras_vit.preprocessing import Preprocessing
from training.engine.averages import Averages
from training.engine.models import description
from training.errors import InputError
from training.reports.tables import write_csv
from training.runs.checkpoints import Checkpoint

_STEPS_BETWEEN_AGREEMENTS = 10  # Several processes must agree on whether to stop.
_SECONDS_BETWEEN_LINES = {True: 1, False: 60}  # Time between lines of progress. Key: whether output is a terminal.
_STEPS_AHEAD = 2  # Number of steps that may be unfinished when the next step is prepared.


@dataclasses.dataclass(frozen=True)
class Intervals:
    """`total`: steps in the whole run. `report`: steps between rows of the history. `checkpoint`: steps between
    additional checkpoints, or `None` for no additional checkpoints. `images`: mean number of images in a step."""

    total: int
    report: int
    checkpoint: int | None
    images: float

    def is_reported(self, step):
        return step % self.report == 0 or step == self.total

    def is_saved(self, step):
        return self.checkpoint is not None and step % self.checkpoint == 0


class StopRequest:
    """A request to stop, by SIGTERM or Ctrl-C. `requested`: this process got one. `accepted`: all processes stop."""

    def __init__(self):
        self.requested = self.accepted = False

    @contextlib.contextmanager
    def listening(self):
        """Records the first signal. A second signal has its usual effect."""

        def record(number, frame):
            self.requested = True
            restore()

        def restore():
            for number, handler in handlers.items():
                signal.signal(number, handler)

        handlers = {number: signal.signal(number, record) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            restore()


@contextlib.contextmanager
def sigterm_as_keyboard_interrupt():
    """Makes SIGTERM raise a KeyboardInterrupt, so that interrupted work is cleaned up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Callbacks(keras.callbacks.CallbackList):
    """Passes metrics to callbacks without reading them, so that steps start before earlier steps have ended.

    Keras's class reads them after each batch. On JAX, every step that has been started keeps its batch in the memory of
    the device. The number of these steps is therefore limited there.
    """

    def __init__(self, callbacks, model):
        super().__init__(callbacks, add_history=True, model=model)
        self._unfinished = collections.deque()

    def on_train_batch_end(self, batch, logs=None):
        self._limit(logs["loss"])
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self._limit(logs["loss"])
        for callback in self.callbacks:
            callback.on_test_batch_end(batch, logs)

    def _limit(self, loss):
        if keras.backend.backend() == "jax":
            self._unfinished.append(loss)
            if len(self._unfinished) > _STEPS_AHEAD:
                self._unfinished.popleft().block_until_ready()


class Keeper(keras.callbacks.Callback):
    """Saves the state that is needed to resume a run. Stops the run on request, or if the loss is not finite.

    The loss is a mean over all steps since the last row of the history. If it was not finite in one of these steps, it
    stays so. It is read before each row and each checkpoint.

    Before a row is added to the history, a validation is run, which may take a long time. The state is therefore saved
    twice: before the validation, and after the row is added. The first of these checkpoints does not contain the new
    row yet. Instead, it stores the training metrics of this row under the key `due`.

    Args:
        metric: Name of the metric by which the best weights are chosen.
        kept: The task's learner, with the weights to save. It shares its weights with the model that is fitted.
        engine: `training.engine.distribution.Engine`
        checkpoints: `training.runs.checkpoints.Checkpoints`, or `None` to save nothing.
        intervals: `Intervals`
        schedule: Function from a step to its learning rate.
        stop: `StopRequest`
    """

    def __init__(self, metric, kept, engine, checkpoints, intervals, schedule, stop):
        super().__init__()
        self.metric, self.kept, self.engine, self.checkpoints = metric, kept, engine, checkpoints
        self.intervals, self.schedule, self.stop = intervals, schedule, stop
        self.step, self.history, self.throughput, self.seconds, self.due = 0, [], [], 0.0, None
        self.best_step = None
        self._metrics, self._saved, self._finite_step = None, None, 0

    def set_model(self, model):
        super().set_model(model)
        self.averages = Averages(model, self.engine)

    def restore(self, checkpoint):
        """Restores the whole state of a run from a checkpoint."""
        self.restore_state(checkpoint)
        self.step = self._saved = self._finite_step = checkpoint.step
        self._metrics = checkpoint.state["metrics"]
        facts = checkpoint.facts
        self.history, self.throughput, self.seconds = facts["history"], facts["throughput"], facts["seconds"]
        self.best_step, self.due = facts["best_step"], facts.get("due")
        available = self.checkpoints.steps()
        if self.best_step not in available:  # The checkpoint of the best step was damaged.
            rows = [row for row in self.history if row["step"] in available]
            self.best_step = max(rows, key=self._value)["step"] if rows else None

    def restore_state(self, checkpoint):
        """Restores the weights, optimizer, random generators and metrics from a checkpoint."""
        for group, variables in self._groups().items():
            arrays = checkpoint.state.get(group, [])
            if [tuple(variable.shape) for variable in variables] != [array.shape for array in arrays]:
                raise InputError(f"The checkpoint of step {checkpoint.step} is for another model: its {group} differ.")
            self.engine.assign(variables, arrays)

    @property
    def has_row(self):
        """Whether the history has a row for the last step."""
        return bool(self.history) and self.history[-1]["step"] == self.step

    def on_train_begin(self, logs=None):
        self._began = time.monotonic()

    def on_epoch_begin(self, epoch, logs=None):
        if self.step % self.intervals.report and self._metrics is not None:  # Keras has reset the metrics.
            self.engine.assign(self.model.metrics_variables, self._metrics)
        self._metrics = None
        self._first_step, self._epoch_began = self.step, time.monotonic()
        self.seconds, self._began = self.seconds + time.monotonic() - self._began, time.monotonic()

    def read(self, logs):
        """The metrics of the last step as floats. Waits until this step has ended, and stores the time in `stepped`."""
        metrics = {name: float(value) for name, value in logs.items()}
        self.stepped = time.monotonic()
        if math.isfinite(metrics["loss"]):
            self._finite_step = self.step
        return metrics

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self._accept_stop(self.step)
        if self.intervals.is_reported(self.step):
            self.due = self._read_finite(logs)
            images = (self.step - self._first_step) * self.intervals.images
            self.throughput.append(images / (self.stepped - self._epoch_began))
        elif self.stop.accepted or self.intervals.is_saved(self.step):
            self._read_finite(logs)
            self._save()

    def on_test_begin(self, logs=None):
        if self.due and self._saved != self.step:
            self._save()
        # After a request to stop, the validation is skipped.
        self.model.stop_evaluating = self.stop.accepted
        self.averages.use()

    def on_test_batch_end(self, batch, logs=None):
        self._accept_stop(batch + 1)
        self.model.stop_evaluating = self.stop.accepted

    def on_test_end(self, logs=None):
        self.averages.put_back()

    def on_epoch_end(self, epoch, logs=None):
        validation = {name: float(value) for name, value in logs.items() if name.startswith("val_")}
        if self.due is None or (validation and self.stop.accepted):  # The interval or its validation is incomplete.
            return
        learning_rate = float(self.schedule(self.step - 1))
        row = {"epoch": epoch + 1, "step": self.step, "learning_rate": learning_rate, **self.due, **validation}
        best = [row for row in self.history if row["step"] == self.best_step]
        if not best or self._value(row) > self._value(best[0]):
            self.best_step = self.step
        self.history.append(row)
        self.due = None
        self._save()

    def on_train_end(self, logs=None):
        self.seconds += time.monotonic() - self._began

    def _read_finite(self, logs):
        metrics = self.read(logs)
        if not math.isfinite(metrics["loss"]):
            self._fail(f"The loss is {metrics['loss']}")
        return metrics

    def _fail(self, problem):
        last = max(self.checkpoints.steps() if self.checkpoints else [], default=None)
        first = self._finite_step + 1
        raise InputError(
            f"{problem} at step {self.step}, with a learning rate of {float(self.schedule(self.step - 1)):.3g}. "
            + (f"This began in one of the steps {first} to {self.step}. " if first < self.step else "")
            + "Lower optimizer.learning_rate, or set optimizer.clip_norm or a longer schedule.warmup. "
            + ("There is no checkpoint yet." if last is None else f"The last good checkpoint is that of step {last}.")
        )

    def _accept_stop(self, count):
        """Stops all processes if any process has received a request to stop. `count` batches have been started.

        If there are several processes, they check for such requests only after every tenth batch, because the check
        waits until this batch has been completed.
        """
        if self.engine.num_processes == 1 or count % _STEPS_BETWEEN_AGREEMENTS == 0:
            self.stop.accepted = self.engine.any_process(self.stop.requested)
            self.model.stop_training = self.stop.accepted

    def _groups(self):
        # The variables of preprocessing layers follow from the recipe.
        layers = [layer for layer in all_layers(self.kept) if isinstance(layer, Preprocessing)]
        constants = {id(variable) for layer in layers for variable in layer.variables}
        return {
            "weights": [variable for variable in self.kept.variables if id(variable) not in constants],
            "optimizer": self.model.optimizer.variables,
            "metrics": self.model.metrics_variables,
        }

    def _save(self):
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        state = {group: self.engine.to_host(variables) for group, variables in self._groups().items()}
        if not all(np.isfinite(array).all() for array in state["weights"]):
            self._fail("The weights are not finite")
        facts = {
            "history": self.history,
            "throughput": self.throughput,
            "seconds": self.seconds + time.monotonic() - self._began,
            "best_step": self.best_step,
            "due": self.due,
            "model": description(self.kept),
        }
        if self.checkpoints is not None and self.engine.is_chief:
            self.checkpoints.write(Checkpoint(self.step, state, facts))
        self._saved = self.step

    def _value(self, row):
        """The metric of a row of the history. The best row has the highest value."""
        return row.get(f"val_{self.metric}", row[self.metric])


class History(keras.callbacks.Callback):
    """Writes the history as a CSV file, including the rows that were written before the run was resumed."""

    def __init__(self, path, keeper):
        super().__init__()
        self.path, self.keeper = path, keeper

    def on_epoch_end(self, epoch, logs=None):
        write_history(self.path, self.keeper.history)


class TensorBoard(keras.callbacks.TensorBoard):
    """Logs the metrics of each row of the history. An interrupted validation is not logged."""

    def __init__(self, path, keeper):
        super().__init__(path)
        self.keeper = keeper

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch)  # With `logs`, it would read the metrics.

    def on_test_end(self, logs=None):
        if not self.keeper.stop.accepted:
            super().on_test_end(logs)

    def on_epoch_end(self, epoch, logs=None):
        if self.keeper.has_row:
            super().on_epoch_end(epoch, logs)


def write_history(path, rows):
    """Writes rows as a CSV file. The rows are dictionaries with the same keys."""
    write_csv(path, [*rows[:1], *([row[name] for name in rows[0]] for row in rows)])


class Progress(keras.callbacks.Callback):
    """Prints the progress of a run, and a line for each row of the history.

    On a terminal, each line overwrites the previous line of progress.
    """

    def __init__(self, keeper):
        super().__init__()
        self.keeper = keeper
        self._printed, self._steps, self._timed = 0.0, 0, None

    def on_epoch_begin(self, epoch, logs=None):
        self._timed = None  # The first step is not timed, because it includes compilation and the wait for data.

    def on_train_batch_end(self, batch, logs=None):
        is_first = self._timed is None
        is_due = time.monotonic() - self._printed > _SECONDS_BETWEEN_LINES[sys.stdout.isatty()]
        if not (is_first or is_due):
            return
        metrics = self.keeper.read(logs)
        if is_first:
            self._timed, self._steps = self.keeper.stepped, self.keeper.step
        if is_due:
            self._printed = self.keeper.stepped
            self._print(self._line(metrics), "\r" if sys.stdout.isatty() else "\n")
        if not math.isfinite(metrics["loss"]):
            self.keeper.stop.requested = True  # All processes then stop, and `Keeper` raises the error.

    def on_epoch_end(self, epoch, logs=None):
        if self.keeper.has_row:
            self._print(self._line(self.keeper.history[-1]), "\n")

    def _line(self, metrics):
        keeper = self.keeper
        parts = [f"step {keeper.step:,}/{keeper.intervals.total:,}", f"loss {metrics['loss']:.4f}"]
        parts.append(f"{keeper.metric.replace('_', ' ')} {metrics[keeper.metric]:.1%}")
        if "val_loss" in metrics:
            parts.append(f"validation {metrics['val_loss']:.4f}, {metrics[f'val_{keeper.metric}']:.1%}")
        parts.append(f"learning rate {float(keeper.schedule(keeper.step - 1)):.2e}")
        steps = keeper.step - self._steps
        if self._timed is not None and steps:
            seconds = (keeper.stepped - self._timed) / steps
            left = datetime.timedelta(seconds=round((keeper.intervals.total - keeper.step) * seconds))
            parts += [f"{keeper.intervals.images / seconds:,.0f} images/s", f"{left} left"]
        return "  ".join(parts)

    def _print(self, line, end):
        clear = "\x1b[2K" if sys.stdout.isatty() else ""
        print(clear + line, end=end, flush=True)
