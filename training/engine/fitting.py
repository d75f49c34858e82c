"""Fits the model of a run."""

import functools

import keras
import tensorflow as tf

from keras_vit.decoding import image_decoder
from training.data.pipeline import evaluation_batches, num_steps_per_epoch, training_batches
from training.data.sources import Part
from training.engine.callbacks import (
    Callbacks,
    History,
    Intervals,
    Keeper,
    Progress,
    StopRequest,
    TensorBoard,
    write_history,
)
from training.engine.models import build_model, load_teacher
from training.engine.optimizers import build_optimizer
from training.engine.schedules import build_schedule, num_steps, training_steps
from training.engine.step import TrainedModel
from training.runs.checkpoints import Checkpoints


def seed(recipe):
    """Seeds all generators, makes TensorFlow use deterministic kernels only, and sets the recipe's precision."""
    keras.utils.set_random_seed(recipe.seed)
    tf.config.experimental.enable_op_determinism()
    keras.config.set_dtype_policy(recipe.fit.precision)


def _freeze_unused(learner):
    """Freezes the weights of a learner that it does not train, such as those of a pooling in pre-training."""
    trained = {id(variable) for variable in learner.trainable_variables}
    for variable in learner.variables:
        if id(variable) not in trained:
            variable.trainable = False


class Fitting:
    """Fits the model of a run until the last step. Resumes from the newest checkpoint if there is one.

    Args:
        task: The task of the run, one of `training.tasks.TASKS`, with its recipe.
        dataset: `training.data.dataset.Dataset`
        engine: `training.engine.distribution.Engine`
        run: `training.runs.folder.Run` to write to, or `None` to write nothing.
    """

    def __init__(self, task, dataset, engine, run=None):
        self.task, self.dataset, self.engine, self.run_folder = task, dataset, engine, run
        self.recipe = recipe = task.recipe
        steps_per_epoch = num_steps_per_epoch(dataset, recipe)
        total = training_steps(recipe, steps_per_epoch)
        durations = recipe.fit.report_every, recipe.fit.checkpoint_every
        report, checkpoint = (text and max(num_steps(text, steps_per_epoch, total), 1) for text in durations)
        self.intervals = Intervals(total, report, checkpoint, dataset.splits["train"].size / steps_per_epoch)
        self.checkpoints = run and Checkpoints(run.checkpoints)
        built = self._built_before()
        with engine.scope():
            # The loss takes logits, because a saturated softmax has no gradient.
            model = build_model(recipe, len(dataset.class_names), with_logits=True, built=built)
            engine.prepare(model)
            learner = task.build_learner(model)
            outputs = model.outputs[0] if learner is model else learner(model.inputs[0])
            _freeze_unused(learner)
            options = {"accumulation_steps": recipe.fit.accumulation_steps}
            options["teacher"] = load_teacher(recipe, model, dataset.class_names)
            options["metric"] = task.build_metric(learner, len(dataset.class_names))
            self.trained = TrainedModel(model.inputs[0], outputs, task.build_objective(learner), **options)
            self.trained.compile(build_optimizer(recipe, learner, steps_per_epoch))
        self.model, self.learner = model, learner
        self.stop = StopRequest()
        schedule = build_schedule(recipe, steps_per_epoch, total)
        self.keeper = Keeper(task.metric, learner, engine, self.checkpoints, self.intervals, schedule, self.stop)
        self.keeper.set_model(self.trained)

    def run(self):
        """Fits the model. Returns whether the last step was reached."""
        self._resume()
        validation = self._validation()
        callbacks = [self.keeper, *self._chief_callbacks()] if self.engine.is_chief else [self.keeper]
        with self.stop.listening():
            if self.keeper.due:
                self._finish_row(self.keeper.due, validation, callbacks)
            changes = self.task.build_changes(self.model, len(self.dataset.class_names))
            batches = training_batches(self.dataset.splits["train"], changes, self.recipe)
            while self.keeper.step < self.intervals.total and not self.stop.accepted:
                self._fit_segment(batches, validation, callbacks)
            # A stop may have been requested since the last check.
            self.stop.accepted = self.engine.any_process(self.stop.requested)
        return self.keeper.step == self.intervals.total and not self.stop.accepted

    def _validation(self):
        """The arguments of `fit` for the validation. Empty if there is no validation split."""
        if "validation" not in self.dataset.splits:
            return {}
        source, batch_size = self.dataset.splits["validation"], self.recipe.fit.batch_size
        read_label = functools.partial(self.task.read_label, num_classes=len(self.dataset.class_names))
        make = evaluation_batches(source, image_decoder(self.model), read_label, batch_size, self.recipe.data.cache)
        # Keras cannot find the end of distributed batches, so they are repeated, and `fit` gets the number of steps.
        batches = self.engine.distribute(lambda *share: make(*share).repeat(), batch_size)
        steps = Part(batch_size).num_batches(source.size)
        return {"validation_data": batches, "validation_steps": steps}

    def _finish_row(self, due, validation, callbacks):
        """Repeats the validation that was interrupted, and completes its row of the history."""
        callbacks = Callbacks(callbacks, self.trained)
        callbacks.on_train_begin()
        batches, steps = validation["validation_data"], validation["validation_steps"]
        logs = self.trained.evaluate(batches, steps=steps, callbacks=callbacks, verbose=0, return_dict=True)
        logs = due | {f"val_{name}": value for name, value in logs.items()}
        callbacks.on_epoch_end((self.keeper.step - 1) // self.intervals.report, logs)
        callbacks.on_train_end()

    def _fit_segment(self, batches, validation, callbacks):
        """Calls `fit` once: for whole intervals, the rest of an interrupted interval, or a shorter last interval."""
        first, interval, total = self.keeper.step, self.intervals.report, self.intervals.total
        epoch, done = divmod(first, interval)
        num_epochs = (total - first) // interval if not done else 0
        steps = interval if num_epochs else min(interval - done, total - first)
        num_epochs = max(num_epochs, 1)
        make_dataset = batches(range(first, first + num_epochs * steps))
        self.trained.fit(
            self.engine.distribute(make_dataset, self.recipe.fit.batch_size),
            initial_epoch=epoch,
            epochs=epoch + num_epochs,
            steps_per_epoch=steps,
            **validation,
            shuffle=False,  # The batches are already in their final order.
            callbacks=Callbacks(callbacks, self.trained),
            verbose=0,
        )

    def final_weights(self):
        """The last or the best weights of the run, or their moving averages, as arrays."""
        if self.recipe.fit.final_weights == "best" and self.keeper.best_step != self.keeper.step:
            self.keeper.restore_state(self.checkpoints.read(self.keeper.best_step))
        self.keeper.averages.use()
        return self.engine.to_host(self.learner.variables)

    def _built_before(self):
        """The `description` of the model in the newest checkpoint, or `None`. Removes damaged checkpoints."""
        if self.checkpoints is None:
            return None
        if self.engine.is_chief:
            self.checkpoints.clean()
        self.engine.barrier()
        return self.checkpoints.newest_facts().get("model")  # Older checkpoints have no description.

    def _resume(self):
        checkpoint = None if self.checkpoints is None else self.checkpoints.newest()
        if checkpoint is not None:
            self.keeper.restore(checkpoint)
            if self.engine.is_chief:
                # The history is rewritten, because the run may have been killed after writing only the checkpoint.
                write_history(self.run_folder.history, self.keeper.history)
                print(f"Resuming from step {checkpoint.step}.")

    def _chief_callbacks(self):
        yield Progress(self.keeper)
        if self.run_folder is not None:
            yield History(self.run_folder.history, self.keeper)
            yield TensorBoard(self.run_folder.tensorboard, self.keeper)
