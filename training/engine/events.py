"""The life of a run: what happens at each step, validation, checkpoint and row of the history.

An accelerator computes a step while `fit` prepares the next one, unless a metric of the step is read. Reading waits for
the step. Metrics are therefore read only for a row of the history, a checkpoint or a line of progress.

`fitting` is the `training.engine.fitting.Fitting` of the run. `logs` are the metrics of a step, which are not read yet.
"""

import collections
import datetime
import math
import sys
import time

import keras
import numpy as np

from keras_vit.graph import all_layers
from keras_vit.preprocessing import Preprocessing
from training.errors import InputError
from training.files import write_csv

_STEPS_BETWEEN_AGREEMENTS = 10  # Several processes must agree on whether to stop.
_SECONDS_BETWEEN_LINES = {True: 1, False: 60}  # Time between lines of progress. Key: whether output is a terminal.
_STEPS_AHEAD = 2  # Number of steps that may be unfinished when the next step is prepared.


class Events(keras.callbacks.Callback):
    """Calls what happens in a run, in order. An epoch of Keras is an interval between two rows of the history.

    A validation may take a long time. The state is therefore saved before it, with the training metrics of the new row
    as `pending_row`, and after it, with the complete row.
    """

    def __init__(self, fitting):
        super().__init__()
        self.fitting = fitting

    def on_train_begin(self, logs=None):
        self.fitting.clock = time.monotonic()

    def on_epoch_begin(self, epoch, logs=None):
        restore_metrics(self.fitting)
        count_seconds(self.fitting)
        begin_interval(self.fitting)

    def on_train_batch_end(self, batch, logs=None):
        fitting, step = self.fitting, self.fitting.state.step + 1
        fitting.state.step = step
        accept_stop(fitting, step)
        if step % fitting.report_steps == 0 or step == fitting.total_steps:
            begin_row(fitting, logs)
        elif fitting.stop.accepted or (fitting.checkpoint_steps and step % fitting.checkpoint_steps == 0):
            read_finite(fitting, logs)
            save(fitting)
        print_progress(fitting, logs)

    def on_test_begin(self, logs=None):
        if self.fitting.state.pending_row and self.fitting.saved_step != self.fitting.state.step:
            save(self.fitting)
        self.fitting.trained.stop_evaluating = self.fitting.stop.accepted  # A stopped run skips the validation.
        use_averages(self.fitting)

    def on_test_batch_end(self, batch, logs=None):
        accept_stop(self.fitting, batch + 1)

    def on_test_end(self, logs=None):
        use_weights(self.fitting)

    def on_epoch_end(self, epoch, logs=None):
        fitting = self.fitting
        validation = {name: float(value) for name, value in logs.items() if name.startswith("val_")}
        if fitting.state.pending_row and not (validation and fitting.stop.accepted):  # Interval and row are complete.
            complete_row(fitting, epoch, validation)
            save(fitting)
            if fitting.engine.is_chief:
                print_line(fitting, fitting.state.history[-1], "\n")
                write_history(fitting)

    def on_train_end(self, logs=None):
        count_seconds(self.fitting)


def restore_metrics(fitting):
    """Continues the metrics of an interval in which a run was stopped. Keras has reset them."""
    if fitting.state.step % fitting.report_steps and fitting.stopped_metrics is not None:
        fitting.engine.assign(fitting.trained.metrics_variables, fitting.stopped_metrics)
    fitting.stopped_metrics = None


def count_seconds(fitting):
    now = time.monotonic()
    fitting.state.seconds, fitting.clock = fitting.state.seconds + now - fitting.clock, now


def begin_interval(fitting):
    fitting.interval_step, fitting.interval_began = fitting.state.step, time.monotonic()
    fitting.timed = None  # The first step is not timed, because it includes compilation and the wait for data.


def accept_stop(fitting, count):
    """Stops all processes if any process has received a request to stop. `count` batches have been started.

    If there are several processes, they check for such requests only after every tenth batch, because the check waits
    until this batch has been completed.
    """
    if fitting.engine.num_processes == 1 or count % _STEPS_BETWEEN_AGREEMENTS == 0:
        fitting.stop.accepted = fitting.engine.any_process(fitting.stop.requested)
        fitting.trained.stop_training = fitting.trained.stop_evaluating = fitting.stop.accepted


def begin_row(fitting, logs):
    """Keeps the training metrics of a row of the history, and the throughput of its interval."""
    state = fitting.state
    state.pending_row = read_finite(fitting, logs)
    images = (state.step - fitting.interval_step) * fitting.images_per_step
    state.throughput.append(images / (fitting.read_time - fitting.interval_began))


def complete_row(fitting, epoch, validation):
    """Adds a row to the history, and updates the best step."""
    state = fitting.state
    learning_rate = float(fitting.schedule(state.step - 1))
    row = {"epoch": epoch + 1, "step": state.step, "learning_rate": learning_rate, **state.pending_row, **validation}
    best = [earlier for earlier in state.history if earlier["step"] == state.best_step]
    if not best or quality(fitting, row) > quality(fitting, best[0]):
        state.best_step = state.step
    state.history.append(row)
    state.pending_row = {}


def quality(fitting, row):
    """The quality of a row of the history, by the metric of the task. The best row has the highest quality."""
    metric = fitting.task.metric
    return metric.quality(row.get(f"val_{metric.name}", row[metric.name]))


def read(fitting, logs):
    """The metrics of the last step as floats. Waits until this step has ended, and keeps this time in `read_time`."""
    metrics = {name: float(value) for name, value in logs.items()}
    fitting.read_time = time.monotonic()
    if math.isfinite(metrics["loss"]):
        fitting.finite_step = fitting.state.step
    return metrics


def read_finite(fitting, logs):
    """The metrics as in `read`. Stops the run if the loss is not finite.

    The loss is a mean over all steps since the last row of the history. If it was not finite in one of these steps, it
    stays so. It is read before each row and each checkpoint.
    """
    metrics = read(fitting, logs)
    if not math.isfinite(metrics["loss"]):
        _fail(fitting, f"The loss is {metrics['loss']}")
    return metrics


def _fail(fitting, problem):
    step, first = fitting.state.step, fitting.finite_step + 1
    last = max(fitting.checkpoints.steps() if fitting.checkpoints else [], default=None)
    raise InputError(
        f"{problem} at step {step}, with a learning rate of {float(fitting.schedule(step - 1)):.3g}. "
        + (f"This began in one of the steps {first} to {step}. " if first < step else "")
        + "Lower optimizer.learning_rate, or set optimizer.clip_norm or a longer schedule.warmup. "
        + ("There is no checkpoint yet." if last is None else f"The last good checkpoint is that of step {last}.")
    )


def save(fitting):
    """Writes a checkpoint. Stops the run if the weights are not finite."""
    if keras.backend.backend() == "jax":
        fitting.trained.jax_state_sync()
    arrays = {group: fitting.engine.to_host(variables) for group, variables in saved_variables(fitting).items()}
    if not all(np.isfinite(array).all() for array in arrays["weights"]):
        _fail(fitting, "The weights are not finite")
    count_seconds(fitting)
    if fitting.checkpoints is not None and fitting.engine.is_chief:
        fitting.checkpoints.write(fitting.state, arrays)
    fitting.saved_step = fitting.state.step


def saved_variables(fitting):
    """{group: variables} of a checkpoint. The variables of preprocessing layers follow from the recipe."""
    layers = [layer for layer in all_layers(fitting.learner) if isinstance(layer, Preprocessing)]
    constants = {id(variable) for layer in layers for variable in layer.variables}
    return {
        "weights": [variable for variable in fitting.learner.variables if id(variable) not in constants],
        "optimizer": fitting.trained.optimizer.variables,
        "metrics": fitting.trained.metrics_variables,
    }


def use_averages(fitting):
    """Replaces the weights by their moving averages, if the optimizer has averages."""
    trained, engine = fitting.trained, fitting.engine
    if trained.optimizer.averages:
        fitting.replaced_weights = engine.to_host(trained.trainable_variables)
        # The weights get copies of the averages, because a test step on JAX frees the arrays of the weights.
        averages = [array.copy() for array in engine.to_host(trained.optimizer.averages)]
        engine.assign(trained.trainable_variables, averages)


def use_weights(fitting):
    """Restores the weights that `use_averages` replaced."""
    if fitting.trained.optimizer.averages:
        fitting.engine.assign(fitting.trained.trainable_variables, fitting.replaced_weights)


def write_history(fitting):
    """Writes the history as a CSV file, including the rows that were written before the run was resumed."""
    rows = fitting.state.history
    if fitting.run_folder is not None and rows:
        write_csv(fitting.run_folder.history, [rows[0], *([row[name] for name in rows[0]] for row in rows)])


def print_progress(fitting, logs):
    """Prints a line of progress, if the last line is old enough. On a terminal, it overwrites the last line."""
    is_first, is_terminal = fitting.timed is None, sys.stdout.isatty()
    is_due = time.monotonic() - fitting.printed > _SECONDS_BETWEEN_LINES[is_terminal]
    if not fitting.engine.is_chief or not (is_first or is_due):
        return
    metrics = read(fitting, logs)
    if is_first:
        fitting.timed = fitting.state.step, fitting.read_time
    if is_due:
        fitting.printed = fitting.read_time
        print_line(fitting, metrics, "\r" if is_terminal else "\n")
    if not math.isfinite(metrics["loss"]):
        fitting.stop.requested = True  # All processes then stop, and `read_finite` raises the error.


def print_line(fitting, metrics, end):
    """Prints the metrics of the last step, the number of images per second and the time that is left."""
    step, total, metric = fitting.state.step, fitting.total_steps, fitting.task.metric
    parts = [f"step {step:,}/{total:,}", f"loss {metrics['loss']:.4f}"]
    parts.append(f"{metric.title} {metric.text(metrics[metric.name], 1)}")
    if "val_loss" in metrics:
        parts.append(f"validation {metrics['val_loss']:.4f}, {metric.text(metrics[f'val_{metric.name}'], 1)}")
    parts.append(f"learning rate {float(fitting.schedule(step - 1)):.2e}")
    timed_step, timed_at = fitting.timed or (step, None)
    if step > timed_step:
        seconds = (fitting.read_time - timed_at) / (step - timed_step)
        left = datetime.timedelta(seconds=round((total - step) * seconds))
        parts += [f"{fitting.images_per_step / seconds:,.0f} images/s", f"{left} left"]
    clear = "\x1b[2K" if sys.stdout.isatty() else ""
    print(clear + "  ".join(parts), end=end, flush=True)


class Callbacks(keras.callbacks.CallbackList):
    """Passes metrics to callbacks without reading them, so that steps start before earlier steps have ended.

    Keras's class reads them after each batch. On JAX, every step that has been started keeps its batch in the memory of
    the device. The number of these steps is therefore limited there.
    """

    def __init__(self, callbacks, model):
        super().__init__(callbacks, add_history=True, model=model)
        self._unfinished = collections.deque()

    def on_train_batch_end(self, batch, logs=None):
        self._limit_unfinished(logs["loss"])
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self._limit_unfinished(logs["loss"])
        for callback in self.callbacks:
            callback.on_test_batch_end(batch, logs)

    def _limit_unfinished(self, loss):
        if keras.backend.backend() == "jax":
            self._unfinished.append(loss)
            if len(self._unfinished) > _STEPS_AHEAD:
                self._unfinished.popleft().block_until_ready()


class TensorBoard(keras.callbacks.TensorBoard):
    """Logs the metrics of each row of the history. An interrupted validation is not logged."""

    def __init__(self, fitting):
        super().__init__(fitting.run_folder.tensorboard)
        self.fitting = fitting

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch)  # With `logs`, it would read the metrics.

    def on_test_end(self, logs=None):
        if not self.fitting.stop.accepted:
            super().on_test_end(logs)

    def on_epoch_end(self, epoch, logs=None):
        history = self.fitting.state.history
        if history and history[-1]["step"] == self.fitting.state.step:
            super().on_epoch_end(epoch, logs)
