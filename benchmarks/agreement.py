"""Measures how much lower precision, other runtimes and merged tokens change the answers of a trained model.

Command: make bench-agreement ARGS="--weights vit.npz --images photographs"

Each row is one way to compute the answers. All rows get the same images, decoded as in the model's exports. Their
probabilities are compared with those of the model in float32: the share of images with the same most probable class,
the mean difference of the probability of that class, and the largest difference of any probability. A line of JSON for
each row is added to benchmarks/results/agreement.jsonl, with device, commit and versions. --document writes the table
into docs/performance/token_merging.md.
"""

import argparse
import os
import pathlib
import sys
import tempfile

import numpy as np

from benchmarks.provenance import device, in_words, provenance, versions_in_words
from benchmarks.records import add_options, append, put_between
from benchmarks.runtimes import openvino_model

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
_BATCH = 8


def agreement(expected, actual):
    """Compares probabilities (N, classes). Returns the share of images with the same most probable class, the mean
    difference of the probability of the expected class, and the largest difference of any probability."""
    classes = expected.argmax(axis=1)[:, None]
    difference = np.take_along_axis(actual, classes, axis=1) - np.take_along_axis(expected, classes, axis=1)
    return np.mean(actual.argmax(axis=1) == classes[:, 0]), np.abs(difference).mean(), np.abs(actual - expected).max()


def image_paths(folders):
    """Paths of all images in some folders and their subfolders, sorted. Each folder must contain an image."""
    paths = []
    for folder in folders:
        matches = sorted(path for path in pathlib.Path(folder).rglob("*") if path.suffix.lower() in _SUFFIXES)
        if not matches:
            raise SystemExit(f"{folder} contains no images, which are files that end with {', '.join(_SUFFIXES)}.")
        paths += matches
    return paths


def ways_to_answer(model, weights, merged):
    """{name: function from pixels (N, H, W, C), uint8, to probabilities}. The model itself is the first entry."""
    import keras_vit

    with_merging = {
        f"`token_merging={r}`": _model_predictor(keras_vit.from_pretrained(weights, token_merging=r)) for r in merged
    }
    return {
        "the model": _model_predictor(model),
        "SavedModel, bfloat16": _saved_model_predictor(model, "bfloat16"),
        "SavedModel, int8": _saved_model_predictor(model, "int8"),
        **_openvino_predictors(model, {"OpenVINO file, float32": "f32", "OpenVINO file, bfloat16": "bf16"}),
        **with_merging,
    }


def _model_predictor(model):
    import keras_vit

    return lambda pixels: model.predict_on_batch(keras_vit.preprocess_input(pixels, model))


def _saved_model_predictor(model, precision):
    import tensorflow as tf

    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        keras_vit.export_saved_model(model, folder, precision=precision, min_agreement=0)
        served = tf.saved_model.load(f"{folder}/1")
    # A signature does not keep its variables alive, so it is looked up at each call.
    return lambda pixels: served.signatures["predict_pixels"](images=tf.constant(pixels))["probabilities"].numpy()


def _openvino_predictors(model, hints):
    """{name: function} of one OpenVINO file, for precisions {name: hint}."""
    import keras_vit

    def open_file(file, hint):
        compiled = openvino_model(file, len(os.sched_getaffinity(0)), INFERENCE_PRECISION_HINT=hint)
        return lambda pixels: compiled(pixels.astype("float32"))["probabilities"]

    with tempfile.TemporaryDirectory() as folder:
        file = keras_vit.export_model(model, f"{folder}/model.xml", "openvino").path
        return {name: open_file(file, hint) for name, hint in hints.items()}


def measure(weights, paths, merged):
    """The lines of the results: the agreement of each way to answer with the model itself."""
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
        values = zip(("same_class", "difference", "largest"), map(float, agreement(expected, actual)), strict=True)
        rows.append(common | {"answers": name} | dict(values))
    return rows


def table(rows):
    """Markdown: a row for each line of the results, which are for the same weights and images."""
    title = f"{rows[0]['weights']}, {rows[0]['images']} images"
    lines = [f"| {title} | same class | mean difference | largest difference |", "|---|--:|--:|--:|"]
    for row in rows:
        cells = [row["answers"], f"{row['same_class']:.1%}", f"{row['difference']:.1e}", f"{row['largest']:.1e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--weights", required=True, metavar="SOURCE", help="a trained model, as in keras_vit.from_pretrained")
    add("--images", required=True, nargs="+", type=pathlib.Path, metavar="FOLDER", help="folders of images")
    add("--merged", nargs="*", type=int, default=[2, 4, 8, 13, 16], metavar="R", help="tokens merged in each block")
    add_options(parser, "bench-agreement", "agreement")
    options = parser.parse_args(arguments)
    heading, state = f"{in_words()}; {versions_in_words(('openvino',))}", provenance()
    print(f"{heading}:\n")
    rows = measure(options.weights, image_paths(options.images), options.merged)
    append([row | state for row in rows], options.results)
    print(table(rows))
    if options.document:
        put_between("bench-agreement", f"{heading}:\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
