"""Measures how much lower precision, other runtimes and merged tokens change the answers of a trained model.

Command: make bench-agreement ARGS="--weights vit.npz --images photographs"

Each row is one way to compute the answers. Every sixth image calibrates int8 files. All rows get the other images,
decoded as in the model's exports. Their probabilities are compared with those of the model in float32: the share of
images with the same most probable class, the mean difference of the probability of that class, and the largest
difference of any probability. With --labels, the accuracy on the images with labels is measured too. A line of JSON for
each row is added to benchmarks/results/agreement.jsonl, with device, commit and versions. --document writes the table
into docs/performance/token_merging.md.
"""

import argparse
import csv
import pathlib
import sys
import tempfile

import numpy as np

from benchmarks.provenance import device, in_words, provenance, versions_in_words
from benchmarks.records import add_options, append, put_between
from benchmarks.runtimes import SUFFIXES, open_file

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
VERSIONS = ("openvino", "nncf", "onnxruntime", "ai-edge-litert")
"""Packages whose versions are printed."""
_BATCH = 8
_CALIBRATING = 6
"""Every sixth image calibrates int8 files."""


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


def accuracy(answers, labels):
    """The share of right answers, and its 95 % interval (Clopper and Pearson, 1934).

    Args:
        answers: Probabilities (N, classes).
        labels: Class index of each image, or `None` for an image without label.
    """
    from scipy.stats import binomtest

    right = [int(answer.argmax()) == label for answer, label in zip(answers, labels, strict=True) if label is not None]
    return np.mean(right), *binomtest(sum(right), len(right)).proportion_ci()


def read_labels(paths, file):
    """The class index of each image, or `None`, from a CSV file with the columns `file` and `class_index`."""
    with file.open(newline="") as lines:
        labels = {row["file"]: int(row["class_index"]) for row in csv.DictReader(lines)}
    return [labels.get(path.name) for path in paths]


def split_paths(paths):
    """The images that calibrate int8 files, and the others, which are judged."""
    return paths[::_CALIBRATING], [path for index, path in enumerate(paths) if index % _CALIBRATING]


def images_for_export(calibrating, judged):
    """The images that `export_model` gets. It keeps every fourth image back, so judged images are added for this."""
    places = range(3, len(calibrating) + 1, 3)
    return np.insert(calibrating, places, judged[: len(places)], axis=0)


def ways_to_answer(model, weights, merged, for_export):
    """{name: function from pixels (N, H, W, C), uint8, to probabilities}. The model itself is the first entry."""
    import keras_vit

    with_merging = {
        f"`token_merging={r}`": _model_predictor(keras_vit.from_pretrained(weights, token_merging=r)) for r in merged
    }
    return {
        "the model": _model_predictor(model),
        "SavedModel, bfloat16": _saved_model_predictor(model, "bfloat16"),
        "SavedModel, int8": _saved_model_predictor(model, "int8"),
        **_file_predictors(model, for_export),
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


_FILES = {
    "OpenVINO file, float32": ("openvino", "float32", {}),
    "OpenVINO file, bfloat16": ("openvino", "float32", {"hint": "bf16"}),
    "OpenVINO file, int8": ("openvino", "int8", {}),
    "OpenVINO file, int8 and bfloat16": ("openvino", "int8", {"hint": "bf16"}),
    "ONNX file, int8": ("onnx", "int8", {}),
    "LiteRT file, int8": ("litert", "int8", {}),
}
"""{name of a row: (format, precision, options of `runtimes.open_file`)}"""


def _file_predictors(model, for_export):
    """{name: function}, for the files of other runtimes."""
    import keras_vit

    predictors = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (format, precision, options) in _FILES.items():
            path = pathlib.Path(folder, f"{precision}{SUFFIXES[format]}")
            if not path.exists():
                images = for_export if precision == "int8" else None
                keras_vit.export_model(model, path, format, images, precision, min_agreement=0)
            run = open_file(format, str(path), **options)
            predictors[name] = lambda pixels, run=run: run(pixels.astype("float32"))
    return predictors


def measure(weights, paths, merged, labels_file=None):
    """The lines of the results: the agreement of each way to answer with the model itself."""
    import keras_vit
    from keras_vit.data.decoding import image_decoder

    model = keras_vit.from_pretrained(weights)
    decode = image_decoder(model)
    calibrating, paths = split_paths(paths)
    calibrating = np.stack([decode(path.read_bytes()) for path in calibrating])
    pixels = np.stack([decode(path.read_bytes()) for path in paths])
    labels = None if labels_file is None else read_labels(paths, labels_file)
    common = {"weights": pathlib.Path(weights).name, "images": len(paths), "device": device()}
    common |= {"calibrating": len(calibrating)}
    expected, rows = None, []
    for name, answer in ways_to_answer(model, weights, merged, images_for_export(calibrating, pixels)).items():
        actual = np.concatenate([answer(pixels[first : first + _BATCH]) for first in range(0, len(pixels), _BATCH)])
        expected = actual if expected is None else expected
        values = zip(("same_class", "difference", "largest"), map(float, agreement(expected, actual)), strict=True)
        rows.append(common | {"answers": name} | dict(values))
        if labels is not None:
            top_1 = zip(("top_1", "top_1_low", "top_1_high"), map(float, accuracy(actual, labels)), strict=True)
            rows[-1] |= {"labels": len(labels) - labels.count(None)} | dict(top_1)
    return rows


def table(rows):
    """Markdown: a row for each line of the results, which are for the same weights and images."""
    title = f"{rows[0]['weights']}, {rows[0]['images']} images"
    columns = ["same class", "mean difference", "largest difference"]
    if "top_1" in rows[0]:
        columns.append(f"top-1 of {rows[0]['labels']} images with labels (95 % interval)")
    lines = [f"| {' | '.join([title, *columns])} |", f"|---|{'--:|' * len(columns)}"]
    for row in rows:
        cells = [row["answers"], f"{row['same_class']:.1%}", f"{row['difference']:.1e}", f"{row['largest']:.1e}"]
        if "top_1" in row:
            cells.append(f"{row['top_1']:.1%} ({row['top_1_low']:.1%} to {row['top_1_high']:.1%})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--weights", required=True, metavar="SOURCE", help="a trained model, as in keras_vit.from_pretrained")
    add("--images", required=True, nargs="+", type=pathlib.Path, metavar="FOLDER", help="folders of images")
    add("--merged", nargs="*", type=int, default=[2, 4, 8, 13, 16], metavar="R", help="tokens merged in each block")
    add("--labels", type=pathlib.Path, metavar="FILE", help="CSV file with the columns file and class_index")
    add_options(parser, "bench-agreement", "agreement")
    options = parser.parse_args(arguments)
    heading, state = f"{in_words()}; {versions_in_words(VERSIONS)}", provenance()
    print(f"{heading}:\n")
    rows = measure(options.weights, image_paths(options.images), options.merged, options.labels)
    append([row | state for row in rows], options.results)
    print(table(rows))
    if options.document:
        put_between("bench-agreement", f"{heading}:\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
