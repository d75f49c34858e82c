"""One run, from a recipe to a folder with a trained model, its export and its report."""

import re
import subprocess
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.export import image_decoder
from training.data import batches, load_dataset
from training.errors import InputError
from training.evaluate import evaluate, nearest_neighbour_accuracy
from training.optimizers import build_optimizer
from training.report import write_report
from training.runs import add_result, make_runs_folder, new_run

NUM_SAMPLES = 8
_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"GI": ".gif", b"BM": ".bmp", b"RI": ".webp"}


def train(recipe, runs="runs"):
    """Trains a model as a recipe says, and leaves everything about it in a new folder.

    Args:
        recipe: `training.config.Recipe`
        runs: Where the folders of all runs are.

    Returns:
        The `training.runs.Run` and its `training.evaluate.Evaluation` on the test images.
    """
    make_runs_folder(runs)
    dataset = load_dataset(recipe.data)
    start(recipe)  # Not before: preparing a data set for the first time draws random numbers too.
    print(", ".join(f"{dataset.sizes[name]:,} {name} images" for name in dataset.splits), end=" ")
    print(f"in {len(dataset.class_names)} classes")
    # The loss reads logits: where a softmax saturates it has no gradient. The model that is kept returns probabilities.
    trained = build_model(recipe, len(dataset.class_names), classifier_activation=None)
    model = build_model(recipe, len(dataset.class_names))
    run = new_run(recipe, dataset.class_names, runs)
    started = time.monotonic()
    history = fit(trained, dataset, recipe, run)
    seconds = time.monotonic() - started
    if not np.isfinite(history.history["loss"][-1]):
        raise InputError(
            f"The loss is not a number after epoch {len(history.epoch)}. Lower optimizer.learning_rate, or set "
            f"optimizer.clip_norm. What there is lies in {run.folder}."
        )
    model.set_weights(trained.get_weights())
    model.save(run.model)
    evaluation = evaluate(model, dataset, "test", recipe)
    neighbour = nearest_neighbour_accuracy(model, dataset, recipe)
    keras_vit.export_saved_model(model, run.export, labels=dataset.class_names)
    samples = write_samples(dataset, run)
    add_result(
        run,
        test_accuracy=evaluation.accuracy,
        test_loss=evaluation.loss,
        test_images=len(evaluation.labels),
        nearest_neighbour_accuracy=neighbour,
        seconds_of_training=round(seconds, 1),
    )
    write_report(run, recipe, history, evaluation, neighbour, model)
    predict_elsewhere(run, samples)
    return run, evaluation


def start(recipe):
    """Makes a process repeatable: seeds every generator and lets TensorFlow use deterministic kernels only."""
    keras.utils.set_random_seed(recipe.seed)
    tf.config.experimental.enable_op_determinism()
    keras.config.set_dtype_policy(recipe.fit.precision)


def build_model(recipe, classes, classifier_activation="softmax"):
    """The model of a recipe: pixels from 0 to 255 in, probabilities out, or logits if the activation is `None`."""
    return keras_vit.ViT(
        recipe.model.config,
        input_shape=recipe.model.input_shape,
        classes=classes,
        classifier_activation=classifier_activation,
        include_preprocessing=True,
        name=recipe.name,
    )


def fit(model, dataset, recipe, run=None):
    """Fits a model to the training images.

    Args:
        model: What `build_model` returned, ending with logits.
        dataset: `training.data.Dataset`
        recipe: `training.config.Recipe`
        run: `training.runs.Run` to write history and checkpoints to, or `None` to write nothing.

    Returns:
        Keras's `History`.
    """
    decode = image_decoder(model)
    training = batches(dataset, "train", decode, recipe, training=True)
    validation = batches(dataset, "validation", decode, recipe) if "validation" in dataset.splits else None
    model.compile(
        optimizer=build_optimizer(recipe, model, steps_per_epoch=training.cardinality().numpy()),
        loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=recipe.fit.label_smoothing),
        metrics=["accuracy"],
    )
    return model.fit(
        training,
        shuffle=False,  # The data set shuffles itself.
        validation_data=validation,
        epochs=recipe.fit.epochs,
        callbacks=_callbacks(run, validation is not None),
        verbose=1 if sys.stdout.isatty() else 2,
    )


def _callbacks(run, has_validation):
    if run is None:
        return [keras.callbacks.TerminateOnNaN()]
    watched = "val_accuracy" if has_validation else "accuracy"
    return [
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.CSVLogger(run.history),
        keras.callbacks.TensorBoard(run.tensorboard),
        keras.callbacks.ModelCheckpoint(run.checkpoints / "last.weights.h5", save_weights_only=True),
        keras.callbacks.ModelCheckpoint(
            run.checkpoints / "best.weights.h5", monitor=watched, save_best_only=True, save_weights_only=True
        ),
    ]


def write_samples(dataset, run):
    """Writes a test image of each of some classes as it came, named after its class; returns their paths."""
    first = {}
    for example in dataset.splits["test"].as_numpy_iterator():
        first.setdefault(example["label"], example["image"])
        if len(first) == min(NUM_SAMPLES, len(dataset.class_names)):
            break
    paths = []
    for label, image in sorted(first.items()):
        name = re.sub(r"[^-\w]+", "_", dataset.class_names[label])
        paths.append(run.samples / f"{label}-{name}{_SUFFIXES.get(image[:2], '')}")
        paths[-1].write_bytes(image)
    return paths


def predict_elsewhere(run, samples):
    """Loads the SavedModel in another process, as a server would, and predicts held-out images with it."""
    print("\nHeld-out images, predicted by the SavedModel in a process of its own:")
    command = [sys.executable, "-m", "training", "predict", str(run.export), *map(str, samples), "--top", "1"]
    subprocess.run(command, check=True)
