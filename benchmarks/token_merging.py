"""Measures the speed-up by token merging (arXiv 2210.09461).

Command: make bench-merging ARGS="--models B/16"

The speed is that of `predict_on_batch` on random images and weights. In each round every number r of merged tokens has
one turn, in a random order. Rates are medians over the rounds with their quartiles; ratios are medians round by round.
A line of JSON for each r is added to benchmarks/results/merging.jsonl, with device, commit and versions. --document
writes the table into docs/performance/token_merging.md. Use a quiet machine. `make bench-agreement` measures how much
the answers change.
"""

import argparse
import random
import sys
import time

import numpy as np

from benchmarks.provenance import device, in_words, provenance
from benchmarks.records import add_options, append, newest, put_between, read

KEYS = ("device", "model", "size", "batch_size", "r")
"""Keys that identify a line of the results, besides its time."""


def rates(models, images, rounds, steps):
    """Images a second of models, in turns.

    Args:
        models: {name: model}
        images: A batch, (B, H, W, C).
        rounds: Number of turns of each model.
        steps: Number of batches in a turn.

    Returns:
        {name: one rate for each round}
    """
    rng, results = random.Random(0), {name: [] for name in models}
    for model in models.values():  # Compiles the models.
        model.predict_on_batch(images)
    for _ in range(rounds):
        for name in rng.sample([*models], len(models)):
            begun = time.perf_counter()
            for _ in range(steps):
                models[name].predict_on_batch(images)
            results[name].append(steps * len(images) / (time.perf_counter() - begun))
    return results


def measure(variant, merged, size, batch_size, rounds, steps):
    """The lines of the results: the speed of a variant for each r, which must include 0."""
    import keras_vit

    shape = (size, size, 3)
    models = {r: keras_vit.ViT(variant, input_shape=shape, token_merging=r) for r in merged}
    images = np.random.default_rng(0).standard_normal((batch_size, *shape), dtype="float32")
    speed = rates(models, images, rounds, steps)
    common = {"model": variant, "size": size, "batch_size": batch_size, "rounds": rounds, "device": device()}
    return [common | {"r": r, "macs": keras_vit.profile(models[r]).macs} | _speed(speed[r], speed[0]) for r in merged]


def _speed(merged, unmerged):
    low, middle, high = (round(rate, 2) for rate in np.percentile(merged, (25, 50, 75)))
    times = round(np.median(np.divide(merged, unmerged)), 3)
    return {"images_per_second": middle, "low": low, "high": high, "times_unmerged": times}


def table(rows):
    """Markdown: a row for each line of the results."""
    lines = ["| model | r | GMACs | images a second | quartiles | times r = 0 |", "|---|--:|--:|--:|---|--:|"]
    for row in rows:
        cells = [row["model"], str(row["r"]), f"{row['macs'] / 1e9:.2f}", f"{row['images_per_second']:.1f}"]
        cells += [f"{row['low']:.1f} to {row['high']:.1f}", f"{row['times_unmerged']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", default=["S/16", "B/16"], help="variants to measure")
    add("--merged", nargs="+", type=int, default=[0, 2, 4, 8, 13, 16], metavar="R", help="tokens merged in each block")
    add("--size", type=int, default=224, help="side of the images in pixels")
    add("--batch-size", type=int, default=8)
    add("--rounds", type=int, default=7, help="number of turns of each r")
    add("--steps", type=int, default=3, help="number of batches in a turn")
    add_options(parser, "bench-merging", "merging")
    options = parser.parse_args(arguments)
    heading = f"{in_words()}; batches of {options.batch_size} images of {options.size} pixels; r measured in turn"
    print(f"{heading}:\n", flush=True)
    merged = sorted({0, *options.merged})
    for variant in options.models:
        state = provenance()  # Read first: the code may change meanwhile.
        measured = measure(variant, merged, options.size, options.batch_size, options.rounds, options.steps)
        append([row | state for row in measured], options.results)
        print(table(measured), flush=True)
    if options.document:
        conditions = (measured[0]["device"], options.size, options.batch_size)
        rows = [
            row
            for row in newest(read(options.results), KEYS)
            if (row["device"], row["size"], row["batch_size"]) == conditions
        ]
        put_between("bench-merging", f"{heading}:\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
