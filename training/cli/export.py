"""Exports a model for serving."""

import pathlib

from training.cli.arguments import add_image_size, positive


def add_to(subparsers):
    parser = subparsers.add_parser(
        "export",
        help="write a SavedModel for TensorFlow Serving, or a file for another runtime",
        epilog="Each export is compared with the model before it is moved to its final path (see docs/serving.md).",
    )
    add = parser.add_argument
    add("source", type=pathlib.Path, metavar="RUN_OR_MODEL", help="folder of a run, or .keras file")
    add("--format", default="saved_model", choices=("saved_model", "onnx", "litert", "openvino"), help="file format")
    add("--path", type=pathlib.Path, metavar="FOLDER", help="output folder (default: export, next to the model)")
    add("--name", help="name of the model for clients (default: the recipe's name)")
    add("--card", action="store_const", const=True, help="write a model card (README.md) with the run's test results")
    add("--overwrite", action="store_true", help="replace an existing export")
    add("--precision", default="float32", help="float32 (default), bfloat16, float16 or int8")
    add("--tolerance", type=float, metavar="X", help="maximum difference of float32 probabilities (1e-5)")
    add(
        "--min-agreement", type=float, metavar="X", help="minimum share of images with the same class (0.95, int8: 0.9)"
    )
    add("--images", type=pathlib.Path, nargs="+", metavar="FILE", help="images to compare with, and to calibrate int8")
    add("--version", type=positive, metavar="N", help="version of a SavedModel or OpenVINO file (default: the next)")
    only = parser.add_argument_group("options of --format saved_model")
    add = only.add_argument
    add("--labels", type=pathlib.Path, metavar="FILE", help="text file with one class name per line")
    add("--top-k", type=positive, metavar="N", help="number of classes in a prediction (default: 5)")
    add("--jit-compile", action="store_const", const=True, help="compile the model with XLA in the server")
    add("--batch-sizes", type=positive, nargs="+", metavar="N", help="batch sizes for the warm-up (default: 1 8 32)")
    add("--signatures", nargs="+", metavar="NAME", help="signatures to write (default: all that the model has)")
    add_image_size(parser)
    add("--max-patches", type=positive, metavar="N", help="patches of an image, for NaFlex models of images and texts")
    add("--max-image-pixels", type=positive, metavar="N", help="maximum pixels of a decoded image (default: 89478485)")
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.export import export

    arguments = {name: value for name, value in vars(options).items() if value is not None and name != "command"}
    path, sentence = export(**arguments)
    print(f"{sentence}\n{path}")
