"""Measures what token merging (arXiv 2210.09461) saves.

Command: make bench-merging ARGS="--models B/16"

Speed is that of `predict_on_batch` on random images and weights, in turns: in each round every number r of merged
tokens has its turn, in another order each time. Rates are medians over the rounds with their quartiles; ratios are
medians round by round. A line of JSON for each r is added to benchmarks/results/merging.jsonl, with what it was
measured on; --document writes the table into docs/performance.md. It wants a quiet machine. How far answers move with
it, `make bench-agreement` tells.
"""

import argparse
import random
import sys
import time

import numpy as np

from benchmarks.provenance import device, in_words, provenance
from benchmarks.records import DOCUMENT, add_options, append, newest, put_between, read

KEYS = ("device", "model", "size", "batch_size", "r")
"""What lines of the results are of, one at each time."""


def rates(models, images, rounds, steps):
    """Images a second of models, in turns.

    Args:
        models: {what it is called: model}
        images: (B, H, W, C), a batch.
        rounds: How many turns each has.
        steps: How many batches a turn takes.

    Returns:
        {what it is called: one rate for each round}
    """
    rng, found = random.Random(0), {name: [] for name in models}
    for model in models.values():  # Compiles.
        model.predict_on_batch(images)
    for _ in range(rounds):
        for name in rng.sample([*models], len(models)):
            begun = time.perf_counter()
            for _ in range(steps):
                models[name].predict_on_batch(images)
            found[name].append(steps * len(images) / (time.perf_counter() - begun))
    return found


def measure(variant, merged, size, batch_size, rounds, steps):
    """Lines of the results: a variant's speed for each r, 0 among them."""
    import keras_vit

    shape = (size, size, 3)
    models = {r: keras_vit.ViT(variant, input_shape=shape, token_merging=r) for r in merged}
    images = np.random.default_rng(0).standard_normal((batch_size, *shape), dtype="float32")
    found = rates(models, images, rounds, steps)
    common = {"model": variant, "size": size, "batch_size": batch_size, "rounds": rounds, "device": device()}
    return [common | {"r": r, "macs": keras_vit.profile(models[r]).macs} | _speed(found[r], found[0]) for r in merged]


def _speed(found, unmerged):
    low, middle, high = (round(rate, 2) for rate in np.percentile(found, (25, 50, 75)))
    times = round(np.median(np.divide(found, unmerged)), 3)
    return {"images_per_second": middle, "low": low, "high": high, "times_unmerged": times}


def table(rows):
    """Markdown: a line for each line of the results."""
    lines = ["| model | r | GMACs | images a second | quartiles | times r = 0 |", "|---|--:|--:|--:|---|--:|"]
    for row in rows:
        cells = [row["model"], str(row["r"]), f"{row['macs'] / 1e9:.2f}", f"{row['images_per_second']:.1f}"]
        cells += [f"{row['low']:.1f} to {row['high']:.1f}", f"{row['times_unmerged']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments=None):
    """Measures, prints and keeps; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", default=["S/16", "B/16"], help="variants whose speed is measured")
    add("--merged", nargs="+", type=int, default=[0, 2, 4, 8, 13, 16], metavar="R", help="tokens merged in each block")
    add("--size", type=int, default=224, help="side of the images in pixels")
    add("--batch-size", type=int, default=8)
    add("--rounds", type=int, default=7, help="turns of each r")
    add("--steps", type=int, default=3, help="batches in a turn")
    add_options(parser, "merging")
    options = parser.parse_args(arguments)
    heading = f"{in_words()}; batches of {options.batch_size} images of {options.size} pixels, every r in turn"
    print(f"{heading}:\n", flush=True)
    merged = sorted({0, *options.merged})
    for variant in options.models:
        state = provenance()  # Before measuring: of the code that is measured.
        found = measure(variant, merged, options.size, options.batch_size, options.rounds, options.steps)
        append([row | state for row in found], options.results)
        print(table(found), flush=True)
    if options.document:
        asked = (found[0]["device"], options.size, options.batch_size)
        rows = [
            row
            for row in newest(read(options.results), KEYS)
            if (row["device"], row["size"], row["batch_size"]) == asked
        ]
        put_between("bench-merging", f"{heading}:\n\n{table(rows)}", DOCUMENT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
