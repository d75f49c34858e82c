"""What happens between the steps of a run: checkpoints, the history, progress, and stopping in good order."""

import contextlib
import csv
import dataclasses
import datetime
import io
import math
import signal
import sys
import time

import keras

from training.checkpoints import Checkpoint, write_text
from training.errors import InputError

_STEPS_BETWEEN_AGREEMENTS = 10  # Of several processes on whether to stop.
_SECONDS_BETWEEN_LINES = {True: 0.5, False: 60}  # Of the progress, on a terminal and in a file.


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Steps of the whole run, between rows of its history, and between further checkpoints, `None` without."""

    total: int
    report: int
    checkpoint: int | None

    def is_reported(self, step):
        return step % self.report == 0 or step == self.total


class StopRequest:
    """Whether the process was asked to stop, by SIGTERM or by Ctrl-C."""

    def __init__(self):
        self.requested = self.accepted = False

    @contextlib.contextmanager
    def listening(self):
        """Notes the first signal; a second one acts as usual."""

        def note(number, frame):
            self.requested = True
            restore()

        def restore():
            for number, handler in handlers.items():
                signal.signal(number, handler)

        handlers = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            restore()


class Keeper(keras.callbacks.Callback):
    """Saves all that decides how the run goes on, and stops at a request or at a loss that is not a number.

    Args:
        recipe: `training.config.Recipe`
        kept: The model whose weights are kept; the one that is fitted shares them.
        engine: `training.distribution.Engine`
        checkpoints: `training.checkpoints.Checkpoints`, or `None` to save nothing.
        intervals: `Intervals`
        schedule: Learning rate of a step.
        stop: `StopRequest`
    """

    def __init__(self, recipe, kept, engine, checkpoints, intervals, schedule, stop):
        super().__init__()
        self.recipe, self.kept, self.engine, self.checkpoints = recipe, kept, engine, checkpoints
        self.intervals, self.schedule, self.stop = intervals, schedule, stop
        self.step, self.history, self.throughput, self.seconds = 0, [], [], 0.0
        self.best_step, self._best_value = None, -math.inf
        self._metrics, self._weights = None, None

    def restore(self, checkpoint):
        """Goes back to a checkpoint, to go on from there."""
        self.restore_state(checkpoint)
        self.step, self._metrics = checkpoint.step, checkpoint.state["metrics"]
        facts = checkpoint.facts
        self.history, self.throughput, self.seconds = facts["history"], facts["throughput"], facts["seconds"]
        self.best_step, self._best_value = facts["best_step"], facts["best_value"]

    def restore_state(self, checkpoint):
        """Goes back to a checkpoint's weights, optimizer, random generators and metrics."""
        for group, variables in self._groups().items():
            arrays = checkpoint.state.get(group, [])
            if [tuple(variable.shape) for variable in variables] != [array.shape for array in arrays]:
                raise InputError(f"The checkpoint of step {checkpoint.step} is of another model: its {group} differ.")
            self.engine.assign(variables, arrays)

    def use_averages(self):
        """Puts the moving averages in the place of the weights, if there are any."""
        if self.recipe.optimizer.ema:
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def on_train_begin(self, logs=None):
        self._began = time.monotonic()

    def on_epoch_begin(self, epoch, logs=None):
        if self.step % self.intervals.report and self._metrics is not None:  # Keras has just reset them.
            self.engine.assign(self.model.metrics_variables, self._metrics)
        self._metrics = None
        self._first_step, self._epoch_began = self.step, time.monotonic()
        self.seconds, self._began = self.seconds + time.monotonic() - self._began, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self.step, self._stepped = self.step + 1, time.monotonic()
        if not math.isfinite(logs["loss"]):
            raise InputError(
                f"The loss is {float(logs['loss'])} at step {self.step}, with a learning rate of "
                f"{float(self.schedule(self.step - 1)):.3g}. Lower optimizer.learning_rate, or set optimizer.clip_norm "
                f"or a longer schedule.warmup. {self._last_good()}"
            )
        if self.engine.num_processes == 1 or self.step % _STEPS_BETWEEN_AGREEMENTS == 0:
            self.stop.accepted = self.engine.any_process(self.stop.requested)
            self.model.stop_training = self.stop.accepted
        is_due = self.intervals.checkpoint and self.step % self.intervals.checkpoint == 0
        if (is_due or self.stop.accepted) and not self.intervals.is_reported(self.step):
            self._save()

    def on_test_begin(self, logs=None):
        if not self.intervals.is_reported(self.step):
            self.model.stop_evaluating = True  # Asked to stop: nobody waits for a validation.
        if self.recipe.optimizer.ema:
            self._weights = self.engine.to_host(self.model.trainable_variables)
            self.use_averages()

    def on_test_end(self, logs=None):
        self._bring_back()

    def on_epoch_end(self, epoch, logs=None):
        if not self.intervals.is_reported(self.step):
            return
        images = (self.step - self._first_step) * self.recipe.fit.batch_size
        self.throughput.append(images / (self._stepped - self._epoch_began))
        learning_rate = float(self.schedule(self.step - 1))
        metrics = {name: float(value) for name, value in logs.items()}
        self.history.append({"epoch": epoch + 1, "step": self.step, "learning_rate": learning_rate, **metrics})
        value = metrics.get("val_accuracy", metrics["accuracy"])
        if value > self._best_value:
            self.best_step, self._best_value = self.step, value
        self._save()

    def on_train_end(self, logs=None):
        self.seconds += time.monotonic() - self._began
        self._bring_back()  # Keras has put the moving averages in their place, but the run may go on.

    def _groups(self):
        return {
            "weights": self.kept.variables,
            "optimizer": self.model.optimizer.variables,
            "metrics": self.model.metrics_variables,
        }

    def _save(self):
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        state = {group: self.engine.to_host(variables) for group, variables in self._groups().items()}
        if self.recipe.optimizer.ema:
            self._weights = self.engine.to_host(self.model.trainable_variables)
        facts = {
            "history": self.history,
            "throughput": self.throughput,
            "seconds": self.seconds + time.monotonic() - self._began,
            "best_step": self.best_step,
            "best_value": self._best_value,
        }
        if self.checkpoints is not None and self.engine.is_chief:
            self.checkpoints.write(Checkpoint(self.step, state, facts))

    def _bring_back(self):
        if self._weights is not None:
            self.engine.assign(self.model.trainable_variables, self._weights)

    def _last_good(self):
        last = max(self.checkpoints.steps() if self.checkpoints else [], default=None)
        return "There is no checkpoint yet." if last is None else f"The last good checkpoint is that of step {last}."


class History(keras.callbacks.Callback):
    """Writes the rows of the history, which a resumed run takes from its checkpoint, as a CSV file."""

    def __init__(self, path, keeper):
        super().__init__()
        self.path, self.keeper = path, keeper

    def on_epoch_end(self, epoch, logs=None):
        write_history(self.path, self.keeper.history)


def write_history(path, rows):
    """Writes rows, dictionaries of equal keys, as a CSV file."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    write_text(path, text.getvalue())


class Progress(keras.callbacks.Callback):
    """Prints how the run goes: a line that is kept up to date on a terminal, and one for each row of the history."""

    def __init__(self, keeper, batch_size):
        super().__init__()
        self.keeper, self.batch_size = keeper, batch_size
        self._printed, self._steps, self._timed = 0.0, 0, None

    def on_epoch_begin(self, epoch, logs=None):
        self._timed = None  # The first step compiles, or reads the first images; it tells nothing of the others.

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        if self._timed is None:
            self._timed, self._steps = now, self.keeper.step
        if now - self._printed > _SECONDS_BETWEEN_LINES[sys.stdout.isatty()]:
            self._printed = now
            self._print(self._line(logs, now), "\r" if sys.stdout.isatty() else "\n")

    def on_epoch_end(self, epoch, logs=None):
        if self.keeper.intervals.is_reported(self.keeper.step):
            self._print(self._line(logs, time.monotonic()), "\n")

    def _line(self, logs, now):
        keeper = self.keeper
        parts = [f"step {keeper.step:,}/{keeper.intervals.total:,}", f"loss {float(logs['loss']):.4f}"]
        parts.append(f"accuracy {float(logs['accuracy']):.1%}")
        if "val_loss" in logs:
            parts.append(f"validation {float(logs['val_loss']):.4f}, {float(logs['val_accuracy']):.1%}")
        parts.append(f"learning rate {float(keeper.schedule(keeper.step - 1)):.2e}")
        steps = keeper.step - self._steps
        if steps:
            seconds = (now - self._timed) / steps
            left = datetime.timedelta(seconds=round((keeper.intervals.total - keeper.step) * seconds))
            parts += [f"{self.batch_size / seconds:,.0f} images/s", f"{left} left"]
        return "  ".join(parts)

    def _print(self, line, end):
        clear = "\x1b[2K" if sys.stdout.isatty() else ""
        print(clear + line, end=end, flush=True)
