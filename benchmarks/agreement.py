"""Measures how far answers of smaller weights, other runtimes and merged tokens are from those of a trained model.

Command: make bench-agreement ARGS="--weights vit.npz --images photographs"

A row is one way of answering; each gets the same images, decoded as the model's files do it. Compared are the
probabilities with those of the model in float32: on how many images the most probable class is the same, by how much
the probability of that class differs on average, and the largest difference of any. A line of JSON for each row is
added to benchmarks/results/agreement.jsonl, with what it was measured on; --document writes the table into
docs/performance.md.
"""

import argparse
import os
import pathlib
import sys
import tempfile

import numpy as np

from benchmarks.provenance import device, in_words, provenance, versions_in_words
from benchmarks.records import DOCUMENT, add_options, append, put_between
from benchmarks.runtimes import openvino_model

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
_BATCH = 8


def agreement(expected, actual):
    """How alike probabilities (N, classes) are: the share of images with the same most probable class, by how much the
    probability of the one that was expected differs, on average, and the largest difference of any."""
    classes = expected.argmax(axis=1)[:, None]
    moved = np.take_along_axis(actual, classes, axis=1) - np.take_along_axis(expected, classes, axis=1)
    return np.mean(actual.argmax(axis=1) == classes[:, 0]), np.abs(moved).mean(), np.abs(actual - expected).max()


def image_paths(folders):
    """Paths of all images in some folders and those in them, sorted; there must be one in each."""
    paths = []
    for folder in folders:
        found = sorted(path for path in pathlib.Path(folder).rglob("*") if path.suffix.lower() in _SUFFIXES)
        if not found:
            raise SystemExit(f"There is no image in {folder}: files that end with {', '.join(_SUFFIXES)}.")
        paths += found
    return paths


def ways_to_answer(model, weights, merged):
    """{name: function from pixels (N, H, W, C), uint8, to probabilities}, the model of the weights itself first."""
    import keras_vit

    with_merging = {
        f"`token_merging={r}`": _of_model(keras_vit.from_pretrained(weights, token_merging=r)) for r in merged
    }
    return {
        "the model": _of_model(model),
        "SavedModel, bfloat16": _of_saved_model(model, "bfloat16"),
        "SavedModel, int8": _of_saved_model(model, "int8"),
        **_of_openvino(model, {"OpenVINO file, float32": "f32", "OpenVINO file, bfloat16": "bf16"}),
        **with_merging,
    }


def _of_model(model):
    import keras_vit

    return lambda pixels: model.predict_on_batch(keras_vit.preprocess_input(pixels, model))


def _of_saved_model(model, precision):
    import tensorflow as tf

    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        keras_vit.export_saved_model(model, folder, precision=precision, min_agreement=0)
        served = tf.saved_model.load(f"{folder}/1")
    # A signature does not keep its variables alive, so it is asked for where it is used.
    return lambda pixels: served.signatures["predict_pixels"](images=tf.constant(pixels))["probabilities"].numpy()


def _of_openvino(model, hints):
    """{name: function}, of a file that OpenVINO computes in precisions {name: hint}."""
    import keras_vit

    def opened(file, hint):
        compiled = openvino_model(file, len(os.sched_getaffinity(0)), INFERENCE_PRECISION_HINT=hint)
        return lambda pixels: compiled(pixels.astype("float32"))["probabilities"]

    with tempfile.TemporaryDirectory() as folder:
        file = keras_vit.export_model(model, f"{folder}/model.xml", "openvino").path
        return {name: opened(file, hint) for name, hint in hints.items()}


def measure(weights, paths, merged):
    """Lines of the results: how alike the answers of each way to answer are to those of the model itself."""
    import keras_vit
    from keras_vit.decoding import image_decoder

    model = keras_vit.from_pretrained(weights)
    decode = image_decoder(model)
    pixels = np.stack([decode(path.read_bytes()) for path in paths])
    common = {"weights": pathlib.Path(weights).name, "images": len(paths), "device": device()}
    expected, rows = None, []
    for name, answer in ways_to_answer(model, weights, merged).items():
        actual = np.concatenate([answer(pixels[first : first + _BATCH]) for first in range(0, len(pixels), _BATCH)])
        expected = actual if expected is None else expected
        found = zip(("same_class", "difference", "largest"), map(float, agreement(expected, actual)), strict=True)
        rows.append(common | {"answers": name} | dict(found))
    return rows


def table(rows):
    """Markdown: a line for each line of the results, of the same weights and images."""
    title = f"{rows[0]['weights']}, {rows[0]['images']} images"
    lines = [f"| {title} | same class | difference of its probability | largest |", "|---|--:|--:|--:|"]
    for row in rows:
        cells = [row["answers"], f"{row['same_class']:.1%}", f"{row['difference']:.1e}", f"{row['largest']:.1e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments=None):
    """Measures, prints and keeps; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--weights", required=True, metavar="SOURCE", help="a trained model, as keras_vit.from_pretrained takes it")
    add("--images", required=True, nargs="+", type=pathlib.Path, metavar="FOLDER", help="what it is asked about")
    add("--merged", nargs="*", type=int, default=[2, 4, 8, 13, 16], metavar="R", help="tokens merged in each block")
    add_options(parser, "agreement")
    options = parser.parse_args(arguments)
    heading, state = f"{in_words()}; {versions_in_words(('openvino',))}", provenance()
    print(f"{heading}:\n")
    rows = measure(options.weights, image_paths(options.images), options.merged)
    append([row | state for row in rows], options.results)
    print(table(rows))
    if options.document:
        put_between("bench-agreement", f"{heading}:\n\n{table(rows)}", DOCUMENT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
