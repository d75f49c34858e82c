"""Trains a recipe, and writes a folder with the model, its export and its report."""

import contextlib
import pathlib
import shlex
import subprocess
import sys
import textwrap

import keras
import tensorflow as tf

import keras_vit
from keras_vit.atomic_files import replace_file_atomically
from keras_vit.weights.assign import in_place_of_initial_values
from training.data.contents import change_lines, merge_records
from training.engine import distribution
from training.engine.fitting import Fitting, seed
from training.engine.memory import free_memory, is_out_of_memory, is_too_large, shortage_message
from training.engine.models import build_model
from training.engine.stopping import sigterm_as_keyboard_interrupt
from training.errors import InputError, raised_in_pipeline
from training.runs.folder import (
    Run,
    add_result,
    hold,
    is_finished,
    is_untrained,
    new_folder,
    open_run,
    program_path,
    read_record,
    removed_if_untrained,
    resume_command,
)
from training.tasks import TASKS


def train(recipe, runs="runs", folder=None, on_finished=None):
    """Trains the model of a recipe, and writes all results to a folder.

    Args:
        recipe: `training.recipe.config.Recipe`
        runs: Folder of all runs.
        folder: Folder of this run. If it contains a run of the same recipe, that run is resumed from its last
            checkpoint. `None`: a new folder in `runs`.
        on_finished: Function that is called instead of `finish` after the last step, with the same arguments. It must
            write the results and return the evaluation.

    Returns:
        The `training.runs.folder.Run`, and the task's evaluation on the test images. The evaluation is `None` if the
        run was stopped or was already finished. In all processes except the first it is always `None`.
    """
    if is_finished(recipe, runs, folder):
        run = Run(pathlib.Path(folder))
        print(f"run={folder} is finished. Its report: {run.report}. For a new run, omit run=PATH or change PATH.")
        return run, None
    seed(recipe)
    engine = distribution.start(recipe)
    task = TASKS[recipe.task](recipe)
    dataset = _load(task, folder and Run(pathlib.Path(folder)))
    seed(recipe)  # Seeded again, because a data set uses random numbers when it is first prepared.
    if engine.is_chief:
        sizes = ", ".join(f"{source.size:,} {name} images" for name, source in dataset.splits.items())
        names = textwrap.shorten(", ".join(dataset.class_names), 300)
        has_names = dataset.class_names != (task.annotation,)  # Depth and texts have none.
        print(f"{sizes}. {task.predicted.capitalize()} ({len(dataset.class_names):,}): {names}" if has_names else sizes)
    has_folder = folder is not None and pathlib.Path(folder).exists()
    run = Run(pathlib.Path(folder or new_folder(recipe, runs, engine)))
    try:
        with contextlib.ExitStack() as stack:
            if engine.is_chief:
                stack.enter_context(hold(run))
            stack.enter_context(sigterm_as_keyboard_interrupt())
            if engine.is_chief and not run.recipe.is_file():
                stack.enter_context(removed_if_untrained(run, has_folder))
            open_run(recipe, dataset, runs, run.folder, engine)
            return run, _fit_and_finish(Fitting(task, dataset, engine, run), on_finished or finish)
    except KeyboardInterrupt:
        hint = "Nothing was trained yet." if is_untrained(run) else f"To resume: {resume_command(run)}"
        kept = (
            " The features that were computed are kept; the same command continues." * recipe.model.has_frozen_encoder
        )
        print(f"Stopped. {hint}{kept}")
        return run, None


def _load(task, run):
    """Loads the data set of a run, and checks that it has all splits that the run needs.

    Args:
        task: The task of the run.
        run: `Run` to resume if its folder contains one. Its splits are used again. Otherwise, if the initial weights
            or the teacher come from other runs, images that these runs were trained on are training images.
    """
    if run is not None and run.recipe.is_file():
        record = read_record(run, "resume")
    else:
        model, teacher = task.recipe.model, task.recipe.distillation.teacher
        sources = filter(None, [model.weights, model.arguments.get("weights"), teacher])
        record = merge_records(list(_records_of(sources)))
    dataset = task.load(record=record)
    for split in ("train", "test"):
        dataset.source(split)
    if task.recipe.fit.final_weights == "best" and "validation" not in dataset.splits:
        raise InputError(
            "fit.final_weights=best needs validation images, but there are none. Set fit.final_weights=last, or add a "
            "validation split (with TFDS: data.validation_split)."
        )
    return dataset


def _records_of(sources):
    """The records of the runs from which weights come."""
    for source in sources:
        path = pathlib.Path(source).expanduser()
        run = Run(path if Run(path).recipe.is_file() else path.parent)
        if path.exists() and (record := read_record(run, "continue")):
            yield record
        elif path.suffix == ".keras" or run.folder == path:
            print(f"There is no {run.splits.name} beside {source}. It may have been trained on test images.")


def train_once(recipe, runs, folder, on_finished=None):
    """Trains one of several runs, unless it is already finished. Returns whether it is finished now."""
    if is_finished(recipe, runs, folder):
        return True
    train(recipe, runs, folder, on_finished)
    keras.backend.clear_session()
    if is_finished(recipe, runs, folder):
        return True
    print("Stopped. To resume the unfinished runs, repeat the command.")
    return False


def _fit_and_finish(fitting, on_finished):
    engine, run, state = fitting.engine, fitting.run_folder, fitting.state
    free = free_memory()
    if is_too_large(fitting.task.recipe, fitting.model, engine, free):
        raise InputError(shortage_message(fitting.task.recipe, fitting.model, engine, free))
    try:
        if not fitting.run():
            if engine.is_chief:
                print(f"Stopped after step {state.step}, which is saved. To resume: {resume_command(run)}")
            return None
        weights = fitting.final_weights()
        engine.release()
        evaluation = on_finished(fitting.task, fitting.dataset, run, weights, state) if engine.is_chief else None
        engine.end()
        return evaluation
    except Exception as error:
        if is_out_of_memory(error):  # The run itself cannot go on with other settings.
            raise InputError(shortage_message(fitting.task.recipe, fitting.model, engine, free)) from error
        explanation = _explanation(fitting, error)
        if explanation is None:
            raise
        resume = "" if is_untrained(run) else f" To resume: {resume_command(run)}"
        raise InputError(f"{explanation}{resume}") from error


def _explanation(fitting, error):
    """Explains an error of a run to the user. `None` if the error is a defect of this program."""
    data = fitting.task.recipe.data
    if isinstance(error, (InputError, OSError)):
        return str(error)
    if not isinstance(error, tf.errors.OpError):
        return None
    if data.dataset == "folder":
        print(f"An image could not be read. Looking for images in {data.directory} that have changed …")
        changes = fitting.task.load(disjoint=False).contents.changes_since(fitting.dataset.contents)
        gone = {kind: paths for kind, paths in changes.items() if kind.startswith("missing")}
        if gone:
            return "\n  ".join(["Images have changed since the run began.", *change_lines(gone)]) + (
                "\nRestore them, or start a new run with data.max_failures=N, in which up to N training images may "
                "become unreadable."
            )
    unreadable = tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError
    if isinstance(error, unreadable):
        return f"The images cannot be read any more: {error.message}"
    return raised_in_pipeline(error)


def finish(task, dataset, run, weights, state):
    """Writes the trained model, its export, its evaluation and the report.

    Args:
        task: The task of the run, one of `training.tasks.TASKS`, with its recipe.
        dataset: `training.data.dataset.Dataset`
        run: `training.runs.folder.Run`
        weights: Arrays of all weights.
        state: `training.runs.checkpoints.RunState`

    Returns:
        The task's evaluation on the test images.
    """
    exporting = "exporting, " if task.has_predictions else ""
    print(f"Evaluating {dataset.splits['test'].size:,} test images, {exporting}writing the report …", flush=True)
    model, learner = save_model(task, dataset, run, weights, state)
    evaluation = task.evaluate(learner, dataset, "test")
    samples = task.write_samples(dataset, run)
    is_exported = task.has_predictions and export(task.recipe, run, model, dataset.class_names, samples)
    result = task.report(run, dataset, state, evaluation, model)
    # Written last, because it marks the run as finished.
    add_result(run, **result, seconds_of_training=round(state.seconds, 1))
    if is_exported:
        predict_elsewhere(run, samples, task.predict_options(run))
    return evaluation


def save_model(task, dataset, run, weights, state):
    """Saves a run's model, which returns probabilities or features, with the final weights.

    Args:
        task, dataset, run, weights, state: As in `finish`.

    Returns:
        The model, and the task's learner, which contains it.
    """
    with in_place_of_initial_values() as assign_later:
        model = build_model(task.recipe, len(dataset.class_names), built=state.model)
        learner = task.build_learner(model)
        paths = range(len(learner.variables))
        assign_later(dict(zip(paths, weights, strict=True)), dict(zip(paths, learner.variables, strict=True)))
    task.finish(model, dataset)
    with replace_file_atomically(run.model) as unfinished:
        task.saved_model(model, learner).save(unfinished)
    return model, learner


def export(recipe, run, model, class_names, samples):
    """Exports a run's model as the first version of a SavedModel. Returns whether the export succeeded.

    If the export fails, a message names the command that exports the model, and the run continues.
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
    print("\nHeld-out images, predicted by the SavedModel in a separate process:", flush=True)
    command = [sys.executable, "-m", "training", "predict", str(run.export), *map(str, samples), *options]
    subprocess.run(command, check=True)
