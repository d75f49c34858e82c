"""Trainings of our recipes on CIFAR-10, each in a process of its own, as `python -m training train` runs them."""

import contextlib
import json
import pathlib
import tempfile

from benchmarks.workers import elsewhere
from training import recipes
from training.recipe.assignments import override

PROBE = ("fit.steps=100", "fit.report_every=50 steps")
MODEL = "run/model.keras"
"""File of a trained model in its folder."""


def trained(recipe_name, changes=(), evaluate=False, folder=None):
    """Trains a recipe in a separate process.

    Args:
        recipe_name: Name of the recipe.
        changes: Changes to the recipe, `section.field=value`.
        evaluate: Whether the test images are looked at.
        folder: Folder in which the model remains, as `MODEL`. `None`: it does not remain.

    Returns:
        {"steps", "parameters", "seconds": time of training, "images_per_second": in the last interval of the history,
        "curve": a pair (step, validation accuracy) for each row of the history, "test_accuracy": `None` without
        `evaluate`}
    """
    with contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory() as used:
        elsewhere(_train, recipe_name, tuple(changes), evaluate, used)
        return json.loads((pathlib.Path(used) / "outcome.json").read_text())


def probe_steps_per_hour(recipe_name, changes=()):
    """The number of a recipe's training steps in an hour, measured in 50 steps after 50 others."""
    batch_size = override(recipes.load(recipe_name), changes).fit.batch_size
    return round(3600 * trained(recipe_name, (*changes, *PROBE))["images_per_second"] / batch_size)


def write_splits(recipe_name, path):
    """Writes the training and the validation images of a recipe, with their labels, to a file for `contenders.py`."""
    elsewhere(_write_splits, recipe_name, path)


def _train(recipe_name, changes, evaluate, folder):
    from training.engine.train import save_model, train

    outcome = {}

    def write_result(task, dataset, run, weights, state):
        model, _ = save_model(task, dataset, run, weights, state)
        outcome.update(
            steps=state.step,
            parameters=model.count_params(),
            seconds=round(state.seconds, 1),
            images_per_second=round(state.throughput[-1], 1),
            curve=[(row["step"], round(row["val_accuracy"], 4)) for row in state.history],
            test_accuracy=round(task.evaluate(model, dataset, "test").accuracy, 4) if evaluate else None,
        )

    train(override(recipes.load(recipe_name), changes), folder=pathlib.Path(folder) / "run", on_finished=write_result)
    (pathlib.Path(folder) / "outcome.json").write_text(json.dumps(outcome))


def _write_splits(recipe_name, path):
    import numpy as np
    import tensorflow as tf

    from training.data.loading import load_dataset

    arrays = {}
    for name in ("train", "validation"):
        examples = list(load_dataset(recipes.load(recipe_name).data).splits[name].in_order().as_numpy_iterator())
        arrays[f"{name}_images"] = np.stack([tf.io.decode_image(example["image"]).numpy() for example in examples])
        arrays[f"{name}_labels"] = np.array([example["label"] for example in examples])
    np.savez(path, **arrays)
