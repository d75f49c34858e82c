"""One run, from a recipe to a folder with a trained model, its export and its report."""

import contextlib
import pathlib
import shlex
import subprocess
import sys

import keras
import tensorflow as tf

import keras_vit
from keras_vit.atomic_files import replacing
from keras_vit.decoding import image_decoder
from training import distribution
from training.callbacks import (
    History,
    Intervals,
    Keeper,
    Progress,
    StopRequest,
    TensorBoard,
    terminating_like_ctrl_c,
    write_history,
)
from training.checkpoints import Checkpoints
from training.errors import InputError
from training.models import build_model, load_teacher
from training.optimizers import build_optimizer
from training.pipeline import evaluation_batches, num_steps_per_epoch, training_batches
from training.runs import Run, add_result, hold, is_finished, new_folder, open_run, program_path, resume_command
from training.schedules import build_schedule, num_steps, training_steps
from training.sources import Part
from training.step import TrainedModel
from training.tasks import task_of


def train(recipe, runs="runs", folder=None, leave=None):
    """Trains a model as a recipe says, and leaves everything about it in a folder.

    Args:
        recipe: `training.config.Recipe`
        runs: Where the folders of all runs are; a new one is made in it.
        folder: The run's own folder instead. A run that began there with the same recipe goes on from its last
            checkpoint.
        leave: What leaves something of the trained model, called as `finish` is, and called instead of it.

    Returns:
        The `training.runs.Run` and its evaluation on the test images, as the task has it; `None` for the evaluation if
        the run was asked to stop, and in all processes but the first.
    """
    if is_finished(recipe, runs, folder):
        run = Run(pathlib.Path(folder))
        print(f"run={folder} is finished: {run.report}. Name another folder, or none for a new run.")
        return run, None
    seed(recipe)
    engine = distribution.start(recipe)
    dataset = _load(recipe)
    seed(recipe)  # Again: preparing a data set for the first time draws random numbers too.
    if engine.is_chief:
        sizes = ", ".join(f"{source.size:,} {name} images" for name, source in dataset.splits.items())
        print(f"{sizes} in {len(dataset.class_names)} classes")
    run = Run(pathlib.Path(folder or new_folder(recipe, runs, engine)))
    try:
        with hold(run) if engine.is_chief else contextlib.nullcontext(), terminating_like_ctrl_c():
            open_run(recipe, dataset, runs, run.folder, engine)
            return run, _fit_and_finish(Fitting(recipe, dataset, engine, run), leave or finish)
    except KeyboardInterrupt:
        print(f"Stopped. To go on: {resume_command(run)}")
        return run, None


def _load(recipe):
    """The data set of a recipe, with all the splits that a run needs."""
    dataset = task_of(recipe).load()
    for split in ("train", "test"):
        dataset.source(split)
    if recipe.fit.final_weights == "best" and "validation" not in dataset.splits:
        raise InputError(
            "fit.final_weights=best needs validation images, and there are none. Name some with data.validation_split, "
            "or set fit.final_weights=last."
        )
    return dataset


def train_once(recipe, runs, folder, leave=None):
    """Trains as `train` does what is not finished yet, one run of several; returns whether it is finished now."""
    if is_finished(recipe, runs, folder):
        return True
    train(recipe, runs, folder, leave)
    keras.backend.clear_session()
    if is_finished(recipe, runs, folder):
        return True
    print("Stopped. The same command goes on with what is not finished.")
    return False


def _fit_and_finish(fitting, leave):
    """The evaluation, or `None` where there is none."""
    engine, run, keeper = fitting.engine, fitting.run_folder, fitting.keeper
    try:
        if not fitting.run():
            if engine.is_chief:
                print(f"Stopped after step {keeper.step}, which is saved. To go on: {resume_command(run)}")
            return None
        weights = fitting.final_weights()
        engine.leave()
        evaluation = leave(fitting.recipe, fitting.dataset, run, weights, keeper) if engine.is_chief else None
        engine.end()
        return evaluation
    except (InputError, OSError) as error:
        raise InputError(f"{error} To go on from there: {resume_command(run)}") from None


def seed(recipe):
    """Makes a process repeatable: seeds every generator and lets TensorFlow use deterministic kernels only."""
    keras.utils.set_random_seed(recipe.seed)
    tf.config.experimental.enable_op_determinism()
    keras.config.set_dtype_policy(recipe.fit.precision)


class Fitting:
    """The part of a run that fits a model: from the newest checkpoint, if there is one, to the last step.

    Args:
        recipe: `training.config.Recipe`
        dataset: `training.data.Dataset`
        engine: `training.distribution.Engine`
        run: `training.runs.Run` to write to, or `None` to write nothing.
    """

    def __init__(self, recipe, dataset, engine, run=None):
        self.recipe, self.dataset, self.engine, self.run_folder = recipe, dataset, engine, run
        steps_per_epoch = num_steps_per_epoch(dataset, recipe)
        total = training_steps(recipe, steps_per_epoch)
        durations = recipe.fit.report_every, recipe.fit.checkpoint_every
        report, checkpoint = (text and max(num_steps(text, steps_per_epoch, total), 1) for text in durations)
        self.intervals = Intervals(total, report, checkpoint, dataset.splits["train"].size / steps_per_epoch)
        with engine.scope():
            # The loss reads logits: where a softmax saturates it has no gradient.
            model = build_model(recipe, len(dataset.class_names), with_logits=True)
            task, options = task_of(recipe), {"accumulation_steps": recipe.fit.accumulation_steps}
            options["teacher"] = load_teacher(recipe, model, dataset.class_names)
            options["metric"] = task.build_metric(len(dataset.class_names))
            self.trained = TrainedModel(model.inputs[0], model.outputs[0], task.build_objective(), **options)
            self.trained.compile(build_optimizer(recipe, model, steps_per_epoch))
        self.model = model
        self.stop = StopRequest()
        schedule = build_schedule(recipe, steps_per_epoch, total)
        self.checkpoints = run and Checkpoints(run.checkpoints)
        self.keeper = Keeper(recipe, model, engine, self.checkpoints, self.intervals, schedule, self.stop)
        self.keeper.set_model(self.trained)

    def run(self):
        """Fits; returns whether the last step was reached."""
        self._resume()
        validation = self._validation()
        callbacks = [self.keeper, *self._chief_callbacks()] if self.engine.is_chief else [self.keeper]
        with self.stop.listening():
            if self.keeper.due:
                self._finish_row(validation, callbacks)
            batches = training_batches(self.dataset, self.model, self.recipe)
            while self.keeper.step < self.intervals.total and not self.stop.accepted:
                self._fit_segment(batches, validation, callbacks)
            self.stop.accepted = self.engine.any_process(self.stop.requested)  # Since they last agreed.
        return self.keeper.step == self.intervals.total and not self.stop.accepted

    def _validation(self):
        """The arguments of `fit` for the validation, if there is one."""
        if "validation" not in self.dataset.splits:
            return {}
        make = evaluation_batches(self.dataset, "validation", image_decoder(self.model), self.recipe)
        batch_size = self.recipe.fit.batch_size
        # Again and again, with a count: of distributed batches Keras cannot tell where they end.
        batches = self.engine.distribute(lambda *share: make(*share).repeat(), batch_size)
        steps = Part(batch_size).num_batches(self.dataset.splits["validation"].size)
        return {"validation_data": batches, "validation_steps": steps}

    def _finish_row(self, validation, callbacks):
        """The validation that a run was interrupted in, and the row of the history that it was for."""
        callbacks = keras.callbacks.CallbackList(callbacks, model=self.trained)
        callbacks.on_train_begin()
        logs = self.trained.evaluate(
            validation["validation_data"],
            steps=validation["validation_steps"],
            callbacks=callbacks,
            verbose=0,
            return_dict=True,
        )
        logs = self.keeper.due | {f"val_{name}": value for name, value in logs.items()}
        callbacks.on_epoch_end((self.keeper.step - 1) // self.intervals.report, logs)
        callbacks.on_train_end()

    def _fit_segment(self, batches, validation, callbacks):
        """One call of Keras's `fit`: whole intervals, the rest of an interrupted one, or the short last one."""
        first, interval, total = self.keeper.step, self.intervals.report, self.intervals.total
        epoch, done = divmod(first, interval)
        num_epochs = (total - first) // interval if not done else 0
        steps = interval if num_epochs else min(interval - done, total - first)
        num_epochs = max(num_epochs, 1)
        steps_needed = range(first, first + num_epochs * steps)
        self.trained.fit(
            self.engine.distribute(batches(steps_needed), self.recipe.fit.batch_size),
            initial_epoch=epoch,
            epochs=epoch + num_epochs,
            steps_per_epoch=steps,
            **validation,
            shuffle=False,  # The batches come in their order.
            callbacks=callbacks,
            verbose=0,
        )

    def final_weights(self):
        """The weights that are kept, as arrays: the last or the best, or their moving averages."""
        if self.recipe.fit.final_weights == "best" and self.keeper.best_step != self.keeper.step:
            self.keeper.restore_state(self.checkpoints.read(self.keeper.best_step))
        self.keeper.averages.use()
        return self.engine.to_host(self.model.variables)

    def _resume(self):
        if self.checkpoints is None:
            return
        if self.engine.is_chief:
            self.checkpoints.clean()
        self.engine.barrier()
        checkpoint = self.checkpoints.newest()
        if checkpoint is not None:
            self.keeper.restore(checkpoint)
            if self.engine.is_chief:
                # It may have been killed between the checkpoint and the history, even at the last step.
                write_history(self.run_folder.history, self.keeper.history)
                print(f"Going on from step {checkpoint.step}.")

    def _chief_callbacks(self):
        yield Progress(self.keeper)
        if self.run_folder is not None:
            yield History(self.run_folder.history, self.keeper)
            yield TensorBoard(self.run_folder.tensorboard, self.keeper)


def finish(recipe, dataset, run, weights, keeper):
    """Writes what a trained model is good for: itself, its export, its evaluation and the report.

    Args:
        recipe: `training.config.Recipe`
        dataset: `training.data.Dataset`
        run: `training.runs.Run`
        weights: Arrays of all weights.
        keeper: `training.callbacks.Keeper` with the history.

    Returns:
        The evaluation on the test images, as the task has it.
    """
    print(f"Evaluating {dataset.splits['test'].size:,} test images, exporting, writing the report …", flush=True)
    task = task_of(recipe)
    model, evaluation = save_and_evaluate(recipe, dataset, run, weights)
    samples = task.write_samples(dataset, run)
    is_exported = export(recipe, run, model, dataset.class_names, samples)
    result = task.report(run, dataset, keeper, evaluation, model)
    # Last: with it the run is finished.
    add_result(run, **result, seconds_of_training=round(keeper.seconds, 1))
    if is_exported:
        predict_elsewhere(run, samples, task.predict_options(run))
    return evaluation


def save_and_evaluate(recipe, dataset, run, weights):
    """Writes a run's model with its final weights; returns it and its evaluation on the test images."""
    model = build_model(recipe, len(dataset.class_names))
    for variable, array in zip(model.variables, weights, strict=True):
        variable.assign(array)
    with replacing(run.model) as unfinished:
        model.save(unfinished)
    return model, task_of(recipe).evaluate(model, dataset, "test")


def export(recipe, run, model, class_names, samples):
    """Exports a run's model as the first version of a SavedModel; returns whether it answers as the model does.

    If it does not, the run is not lost: it says how to export the model in another way.
    """
    try:
        keras_vit.export_saved_model(
            model, run.export, labels=class_names, overwrite=True, images=samples, name=recipe.name
        )
    except (RuntimeError, ValueError) as error:
        print(f"The model is not exported: {error}")
        print(f"To export it: {program_path()} -m training export {shlex.quote(str(run.folder))} --help")
        return False
    return True


def predict_elsewhere(run, samples, options):
    """Loads the SavedModel in another process, as a server would, and predicts held-out images with it."""
    print("\nHeld-out images, predicted by the SavedModel in a process of its own:")
    command = [sys.executable, "-m", "training", "predict", str(run.export), *map(str, samples), *options]
    subprocess.run(command, check=True)
