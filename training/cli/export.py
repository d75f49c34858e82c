"""Writes a model for those who serve it."""

import pathlib

from training.cli.arguments import positive


def add_to(subparsers):
    parser = subparsers.add_parser(
        "export",
        help="write a SavedModel for TensorFlow Serving, or a file for another runtime",
        epilog="What was written is loaded and compared with the model before it appears. docs/serving.md goes on.",
    )
    add = parser.add_argument
    add("source", type=pathlib.Path, metavar="RUN_OR_MODEL", help="a run's folder, or a .keras file")
    add("--format", default="saved_model", choices=("saved_model", "onnx", "litert", "openvino"))
    add("--path", type=pathlib.Path, metavar="FOLDER", help="where to (default: export, beside the model)")
    add("--name", help="what clients call it (default: the recipe's name)")
    add("--overwrite", action="store_true", help="replace what is there")
    add("--precision", default="float32", help="of the weights: float32, bfloat16, float16 or int8 (default: float32)")
    add("--tolerance", type=float, metavar="X", help="largest difference of float32 probabilities (default: 1e-5)")
    add("--min-agreement", type=float, metavar="PART", help="of the images, with smaller weights (default: 0.95)")
    add("--images", type=pathlib.Path, nargs="+", metavar="FILE", help="to compare on (default: the run's samples)")
    only = parser.add_argument_group("of a SavedModel")
    add = only.add_argument
    add("--version", type=int, metavar="N", help="number of the version (default: the next)")
    add("--labels", type=pathlib.Path, metavar="FILE", help="text file with a class name a line")
    add("--top-k", type=positive, metavar="N", help="classes that are named (default: 5)")
    add("--jit-compile", action="store_const", const=True, help="compile the model with XLA where it is served")
    add("--batch-sizes", type=positive, nargs="+", metavar="N", help="expected (default: 1 8 32)")
    add("--image-size", type=positive, nargs=2, metavar=("H", "W"), help="for a model of variable input size")
    add("--max-image-pixels", type=positive, metavar="N", help="larger images are not decoded (default: 89478485)")
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.export import export

    given = {name: value for name, value in vars(options).items() if value is not None}
    for name in ("command", "environment"):
        given.pop(name, None)
    path, sentence = export(given.pop("source"), **given)
    print(sentence)
    print(path)
