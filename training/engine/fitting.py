"""Fits the model of a run. `training.engine.events` shows what happens during the fit."""

import functools

import keras
import tensorflow as tf

from training.data.augment import build_augmentation
from training.data.pipeline import evaluation_batches, num_steps_per_epoch, training_batches
from training.data.samples import sample_decoder
from training.data.sources import BatchShard
from training.engine.events import Callbacks, Events, TensorBoard, quality, saved_variables, use_averages, write_history
from training.engine.frozen import UNCHANGED, FrozenEncoder, read_label, without_cache
from training.engine.models import build_model, description, load_teacher
from training.engine.optimizers import build_optimizer
from training.engine.schedules import build_schedule, num_steps, training_steps
from training.engine.step import TrainedModel
from training.engine.stopping import StopRequest
from training.errors import InputError
from training.runs.checkpoints import Checkpoints, RunState


def seed(recipe):
    """Seeds all generators, makes TensorFlow use deterministic kernels only, and sets the recipe's precision."""
    keras.utils.set_random_seed(recipe.seed)
    tf.config.experimental.enable_op_determinism()
    keras.config.set_dtype_policy(recipe.fit.precision)


class Fitting:
    """Fits the model of a run until the last step. Resumes from the newest checkpoint if there is one.

    Args:
        task: The task of the run, one of `training.tasks.TASKS`, with its recipe.
        dataset: `training.data.dataset.Dataset`
        engine: `training.engine.distribution.Engine`
        run: `training.runs.folder.Run` to write to, or `None` to write nothing.

    Attributes:
        state: `training.runs.checkpoints.RunState`
        model: The model, with logits as outputs.
        learner: The task's learner, which contains the model. Checkpoints contain its weights.
        trained: The `training.engine.step.TrainedModel`, which shares its weights with the learner.
        stop: `training.engine.stopping.StopRequest`
        schedule: Function from a step to its learning rate.
        total_steps: Number of steps of the whole run.
        report_steps: Number of steps between rows of the history.
        checkpoint_steps: Number of steps between additional checkpoints, or `None` for no additional checkpoints.
        images_per_step: Mean number of images in a step.
    """

    def __init__(self, task, dataset, engine, run=None):
        self.task, self.dataset, self.engine, self.run_folder = task, dataset, engine, run
        self.recipe = recipe = task.recipe
        steps_per_epoch, num_classes = num_steps_per_epoch(dataset, recipe), len(dataset.class_names)
        self.total_steps = total = training_steps(recipe, steps_per_epoch)
        durations = recipe.fit.report_every, recipe.fit.checkpoint_every
        self.report_steps, self.checkpoint_steps = (
            text and max(num_steps(text, steps_per_epoch, total), 1) for text in durations
        )
        self.images_per_step = dataset.splits["train"].size / steps_per_epoch
        self.checkpoints = run and Checkpoints(run.checkpoints)
        state = self._newest_state()
        with engine.scope():
            # The loss takes logits, because a saturated softmax has no gradient.
            model = build_model(recipe, num_classes, with_logits=True, built=state and state.model)
            engine.prepare(model)
            task.prepare(model, total)
            learner = task.build_learner(model)
            if state is None:
                task.load_weights(learner)
            inputs, outputs = task.graph(learner, model)
            trainable = {id(variable) for variable in learner.trainable_variables}
            for variable in learner.variables:
                if id(variable) not in trainable:  # The learner does not use it, like a pooling in pre-training.
                    variable.trainable = False
            options = {"accumulation_steps": recipe.fit.accumulation_steps}
            options["teacher"] = load_teacher(recipe, model, dataset.class_names)
            options["metric"] = task.build_metric(learner, dataset)
            options["reads_labels"], self.frozen = task.reads_labels, None
            if recipe.model.has_frozen_encoder:
                self.frozen = FrozenEncoder(model, task, dataset, run)
                inputs, outputs = self.frozen.head.input, self.frozen.head.output
            self.trained = TrainedModel(inputs, outputs, task.build_objective(learner, dataset), **options)
            self.trained.compile(build_optimizer(recipe, learner, steps_per_epoch))
        self.model, self.learner = model, learner
        self.read_label = functools.partial(task.read_label, num_classes=num_classes)
        self.schedule = build_schedule(recipe, steps_per_epoch, total)
        self.stop = StopRequest()
        self.state = state or RunState(description(model))
        # The steps of the last checkpoint and of the last finite loss, and the time of the last line of progress.
        self.saved_step = self.finite_step = self.state.step
        self.clock = self.printed = 0.0
        self.stopped_metrics = self.timed = None

    def run(self):
        """Fits the model. Returns whether the last step was reached."""
        if self.state.step:
            self._resume()
        validation, callbacks = self._validation(), [Events(self)]
        if self.engine.is_chief and self.run_folder is not None:
            callbacks.append(TensorBoard(self))
        batches = self._training_batches()  # Computes features, which a signal stops at once.
        with self.stop.listening():
            if self.state.pending_row:
                self._repeat_validation(validation, callbacks)
            while self.state.step < self.total_steps and not self.stop.accepted:
                self._fit_segment(batches, validation, callbacks)
            # A stop may have been requested since the last check.
            self.stop.accepted = self.engine.any_process(self.stop.requested)
        return self.state.step == self.total_steps and not self.stop.accepted

    def _training_batches(self):
        changes = build_augmentation(self.model, self.recipe.augment)
        if self.frozen is None:
            return training_batches(self.dataset.splits["train"], changes, self.read_label, self.recipe)
        features = self.frozen.features("train", changes.decode, changes.change, self.recipe.data.views)
        return training_batches(features, UNCHANGED, read_label, without_cache(self.recipe))

    def _validation(self):
        """The arguments of `fit` for the validation. Empty if there is no validation split."""
        if "validation" not in self.dataset.splits:
            return {}
        source, batch_size = self.dataset.splits["validation"], self.recipe.fit.batch_size
        decode = sample_decoder(self.model)
        if self.frozen is None:
            make = evaluation_batches(source, decode, self.read_label, batch_size, self.recipe.data.cache)
        else:
            features = self.frozen.features("validation", decode, UNCHANGED.change)
            make = evaluation_batches(features, UNCHANGED.decode, read_label, batch_size)
        # Keras cannot find the end of distributed batches, so they are repeated, and `fit` gets the number of steps.
        batches = self.engine.distribute(lambda *share: make(*share).repeat(), batch_size)
        return {"validation_data": batches, "validation_steps": BatchShard(batch_size).num_batches(source.size)}

    def _repeat_validation(self, validation, callbacks):
        """Repeats the validation that was interrupted, and completes its row of the history."""
        callbacks = Callbacks(callbacks, self.trained)
        callbacks.on_train_begin()
        batches, steps = validation["validation_data"], validation["validation_steps"]
        logs = self.trained.evaluate(batches, steps=steps, callbacks=callbacks, verbose=0, return_dict=True)
        logs = self.state.pending_row | {f"val_{name}": value for name, value in logs.items()}
        callbacks.on_epoch_end((self.state.step - 1) // self.report_steps, logs)
        callbacks.on_train_end()

    def _fit_segment(self, batches, validation, callbacks):
        """Calls `fit` once: for whole intervals, the rest of an interrupted interval, or a shorter last interval."""
        first, interval, total = self.state.step, self.report_steps, self.total_steps
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
        if self.recipe.fit.final_weights == "best" and self.state.best_step != self.state.step:
            self._restore(self.state.best_step)
        use_averages(self)
        return self.engine.to_host(self.learner.variables)

    def _newest_state(self):
        """The `RunState` of the newest checkpoint, or `None`. Removes damaged checkpoints."""
        if self.checkpoints is None:
            return None
        if self.engine.is_chief:
            self.checkpoints.clean()
        self.engine.barrier()
        steps = self.checkpoints.steps()
        return self.checkpoints.read_state(max(steps)) if steps else None

    def _resume(self):
        """Restores everything that the checkpoint of the last step contains."""
        state = self.state
        self.stopped_metrics = self._restore(state.step)["metrics"]
        available = self.checkpoints.steps()
        if state.best_step not in available:  # The checkpoint of the best step was damaged.
            rows = [row for row in state.history if row["step"] in available]
            state.best_step = max(rows, key=functools.partial(quality, self))["step"] if rows else None
        if self.engine.is_chief:
            write_history(self)  # The run may have been killed after writing only the checkpoint.
            print(f"Resuming from step {state.step}.")

    def _restore(self, step):
        """Assigns and returns the arrays of a checkpoint: weights, optimizer, random generators and metrics."""
        arrays = self.checkpoints.read_arrays(step)
        for group, variables in saved_variables(self).items():
            values = arrays.get(group, [])
            if [tuple(variable.shape) for variable in variables] != [array.shape for array in values]:
                raise InputError(f"The checkpoint of step {step} is for another model: its {group} differ.")
            self.engine.assign(variables, values)
        return arrays
