"""Whether EoMT trains as with transformers on torch, if both draw the same random numbers.

Command: KERAS_BACKEND=tensorflow python -m benchmarks.same_draws

Both models start with the same weights and get the same batches, as the contenders `ours` and `torch` of
`benchmarks.scenes`. The points at which masks are compared, and the queries whose attention is not masked, are those
of a table in place of random ones. Prints the mean losses of every five steps. The default rate is low, because
rounding errors grow with the rate: a query that is assigned otherwise changes all later steps.
"""

import argparse
import csv
import pathlib
import sys
import tempfile
from unittest import mock

import numpy as np
import timm  # noqa: F401 (It must be imported before TensorFlow, which would crash otherwise.)
import torch
from keras import ops

from benchmarks import scenes
from training.engine.train import train
from training.recipe.assignments import override
from training.tasks.mask_losses import MaskObjective

_EVERY = 5


def table(shape):
    """Numbers between 0 and 1 for points (..., P, 2), the same for all masks, or for queries (B, Q)."""
    shape = tuple(int(size) for size in shape)
    points = np.random.default_rng(shape[-2]).random(shape[-2:], "float32")
    return np.broadcast_to(points, shape).copy()


def torch_losses(recipe, folder):
    """The losses of each step of transformers' model."""
    losses = []
    with mock.patch.object(torch, "rand", lambda *shape, **_: torch.tensor(table(shape))):
        scenes.train_torch(recipe, folder, lambda step, loss: losses.append(loss))
    return np.mean(np.reshape(losses, (-1, _EVERY)), axis=1)


def our_losses(recipe, folder):
    """The mean losses of every five steps of this package's model."""

    def draw(_, shape):
        return ops.broadcast_to(table(shape[-2:]), shape)

    def uniform(shape, **_):
        return ops.convert_to_tensor(table((recipe.fit.batch_size, shape[1])))

    with mock.patch.object(MaskObjective, "draw", draw), mock.patch("keras.random.uniform", uniform):
        run, _ = train(override(recipe, [f"fit.report_every={_EVERY} steps"]), folder=folder / "run")
    with open(run.folder / "history.csv") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help="number of steps, a multiple of 5 (default: 60)")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate (default: 0.0001)")
    options = parser.parse_args(arguments)
    settings = argparse.Namespace(task="objects", seed=0, rate=options.rate, steps=options.steps)
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent)
        scenes.initial_weights(0, folder / "initial")
        recipe = scenes.from_weights(scenes.recipe_of(settings), folder / "initial")
        theirs, ours = torch_losses(recipe, folder), our_losses(recipe, folder)
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        print(f"steps to {index * _EVERY}: ours {one:.4f}, torch {other:.4f}")
    print(f"largest difference: {np.max(np.abs(np.divide(ours, theirs) - 1)):.4%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
