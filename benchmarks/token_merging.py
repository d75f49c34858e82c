"""Measures what token merging (arXiv 2210.09461) saves.

Command: make bench-merging ARGS="--models B/16"

Speed is that of `predict_on_batch` on random images and weights, in turns: in each round every number r of merged
tokens has its turn, in another order each time. What is printed are medians over the rounds with their quartiles;
ratios are medians round by round. The table is Markdown. It wants a quiet machine. How far answers move with it, `make
bench-agreement` tells.
"""

import argparse
import random
import sys
import time

import numpy as np

from benchmarks.provenance import in_words


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


def measure_speed(variant, merged, size, batch_size, rounds, steps):
    """The table of a variant's speed for each r, 0 among them, as lines of Markdown without the heading."""
    import keras_vit

    shape = (size, size, 3)
    models = {r: keras_vit.ViT(variant, input_shape=shape, token_merging=r) for r in merged}
    images = np.random.default_rng(0).standard_normal((batch_size, *shape), dtype="float32")
    found = rates(models, images, rounds, steps)
    return [_speed_row(variant, r, keras_vit.profile(models[r]).macs, found) for r in merged]


def _speed_row(variant, r, macs, found):
    low, middle, high = np.percentile(found[r], (25, 50, 75))
    ratio = np.median(np.divide(found[r], found[0]))
    return f"| {variant} | {r} | {macs / 1e9:.2f} | {middle:.1f} | {low:.1f} to {high:.1f} | {ratio:.2f} |"


def main(arguments=None):
    """Measures and prints; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", default=["S/16", "B/16"], help="variants whose speed is measured")
    add("--merged", nargs="+", type=int, default=[0, 2, 4, 8, 13, 16], metavar="R", help="tokens merged in each block")
    add("--size", type=int, default=224, help="side of the images in pixels")
    add("--batch-size", type=int, default=8)
    add("--rounds", type=int, default=7, help="turns of each r")
    add("--steps", type=int, default=3, help="batches in a turn")
    options = parser.parse_args(arguments)
    print(in_words(), flush=True)
    merged = sorted({0, *options.merged})
    print("\n| model | r | GMACs | images a second | quartiles | times r = 0 |\n|---|--:|--:|--:|---|--:|")
    for variant in options.models:
        lines = measure_speed(variant, merged, options.size, options.batch_size, options.rounds, options.steps)
        print("\n".join(lines), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
