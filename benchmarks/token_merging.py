"""Measures what token merging (arXiv 2210.09461) saves, and how far its answers are from those without it.

Command: make bench-merging ARGS="--weights vit.npz --images photographs"

Speed is that of `predict_on_batch` on random images and weights, in turns: in each round every number r of merged
tokens has its turn, in another order each time. What is printed are medians over the rounds with their quartiles;
ratios are medians round by round. With weights and images the answers of the trained model are compared: on how many
images its most probable class stays the same, and how far the probability of that class moves, on average. No training
comes between. Tables are Markdown. It wants a quiet machine.
"""

import argparse
import pathlib
import random
import sys
import time

import numpy as np

from benchmarks.provenance import device, provenance

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
_PACKAGES = ("keras", "tensorflow", "jax", "torch")


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


def agreement(expected, actual):
    """How alike probabilities (N, classes) are: the share of images with the same most probable class, and by how much
    the probability of the one that was expected differs, on average."""
    classes = expected.argmax(axis=1)[:, None]
    moved = np.take_along_axis(actual, classes, axis=1) - np.take_along_axis(expected, classes, axis=1)
    return np.mean(actual.argmax(axis=1) == classes[:, 0]), np.abs(moved).mean()


def measure_agreement(weights, folders, merged, batch_size):
    """The table of a trained model's agreement for each r, as lines of Markdown without the heading; and the number of
    images that it was asked about."""
    import keras_vit
    from keras_vit.decoding import image_decoder

    paths = [path for folder in folders for path in image_paths(folder)]
    pixels, expected, rows = None, None, []
    for r in sorted({0, *merged}):
        model = keras_vit.from_pretrained(weights, token_merging=r)
        if pixels is None:
            decode = image_decoder(model)
            pixels = np.stack([decode(path.read_bytes()) for path in paths])
        actual = model.predict(keras_vit.preprocess_input(pixels, model), batch_size=batch_size, verbose=0)
        expected = actual if expected is None else expected
        share, moved = agreement(expected, actual)
        rows.append(f"| {r} | {keras_vit.profile(model).macs / 1e9:.2f} | {share:.1%} | {moved:.3f} |")
    return rows, len(paths)


def image_paths(folder):
    """Paths of all images in a folder and those in it, sorted; there must be one."""
    paths = sorted(path for path in pathlib.Path(folder).rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise SystemExit(f"There is no image in {folder}: files that end with {', '.join(_SUFFIXES)}.")
    return paths


def main(arguments=None):
    """Measures and prints; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="*", default=["S/16", "B/16"], help="variants whose speed is measured")
    add("--merged", nargs="+", type=int, default=[0, 8, 13, 16], metavar="R", help="tokens merged in each block")
    add("--size", type=int, default=224, help="side of the images in pixels")
    add("--batch-size", type=int, default=8)
    add("--rounds", type=int, default=7, help="turns of each r")
    add("--steps", type=int, default=3, help="batches in a turn")
    add("--weights", metavar="SOURCE", help="a trained model, as keras_vit.from_pretrained takes it")
    add("--images", nargs="+", type=pathlib.Path, metavar="FOLDER", help="what that model is asked about")
    options = parser.parse_args(arguments)
    if bool(options.weights) != bool(options.images):
        parser.error("--weights and --images go together: answers of a trained model are compared on images.")
    versions = provenance()["versions"]
    print(f"{device()}; {', '.join(f'{name} {versions[name]}' for name in _PACKAGES if name in versions)}", flush=True)
    merged = sorted({0, *options.merged})
    if options.models:
        print("\n| model | r | GMACs | images a second | quartiles | times r = 0 |\n|---|--:|--:|--:|---|--:|")
    for variant in options.models:
        lines = measure_speed(variant, merged, options.size, options.batch_size, options.rounds, options.steps)
        print("\n".join(lines), flush=True)
    if options.weights:
        rows, count = measure_agreement(options.weights, options.images, merged, options.batch_size)
        print(f"\n{pathlib.Path(options.weights).name} on {count} images:\n")
        print("| r | GMACs | same class | difference of its probability |\n|--:|--:|--:|--:|")
        print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
