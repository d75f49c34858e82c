"""The arguments of the command line."""

import argparse
import pathlib
import sys

from training import commands, recipes, studies
from training.text import check_name, shortened_lines

_MOST_DIGITS = 9


def parse(arguments):
    """The options of a command line; `command` is the function of `training.commands` that takes them."""
    parser = _parser()
    arguments = sys.argv[1:] if arguments is None else arguments
    for argument in arguments:
        check_name(argument)
    options, rest = parser.parse_known_args(arguments)
    assignments = [argument for argument in rest if commands.is_assignment(argument)]
    if rest != assignments or (rest and not hasattr(options, "assignments")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if assignments:  # Those behind an option.
        options.assignments = [*options.assignments, *assignments]
    if commands.is_assignment(getattr(options, "recipe", None) or ""):  # No recipe was named.
        if options.command not in (commands.train, commands.plan):
            parser.error(f"name a RECIPE before {options.recipe}: {', '.join(recipes.NAMES)}, or a run's recipe.json")
        options.recipe, options.assignments = None, [options.recipe, *options.assignments]
    return options


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        super().error(shortened_lines(message))


def _parser():
    parser = _Parser("python -m training", description="Train Vision Transformers and use them.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    train = subparsers.add_parser(
        "train",
        help="train a model",
        epilog=f"Recipes: {', '.join(recipes.NAMES)}; or the path of a run's recipe.json.",
    )
    train.add_argument("recipe", nargs="?", metavar="RECIPE", help="default: that of the run, or digits")
    train.add_argument(
        "assignments", nargs="*", metavar="section.field=value", help="changes of the recipe; run=PATH: its folder"
    )
    train.add_argument("--show", action="store_true", help="print every field of the recipe and stop")
    train.add_argument("--runs", default="runs", metavar="FOLDER", help="where runs are kept (default: runs)")
    train.set_defaults(command=commands.train)

    _add_plan(subparsers)

    records = subparsers.add_parser("records", help="write a data set as TFRecord shards, for a bucket or shared disk")
    records.add_argument("recipe", metavar="RECIPE", help="whose data set it is")
    records.add_argument("assignments", nargs="*", metavar="section.field=value", help="changes of the recipe")
    records.add_argument("--to", required=True, metavar="DIRECTORY", help="where to, also gs://bucket/folder")
    records.set_defaults(command=commands.records)

    evaluate = subparsers.add_parser("evaluate", help="measure the accuracy of a run's model, or of published weights")
    _add_measured(evaluate)
    evaluate.add_argument(
        "--split", default="test", choices=("train", "validation", "test", "all"), help="all: of other data"
    )
    evaluate.set_defaults(command=commands.evaluate)

    _add_fewshot(subparsers)
    _add_duplicates(subparsers)

    _add_predict(subparsers)
    _add_explain(subparsers)
    _add_export(subparsers)
    _add_study(subparsers)
    _add_vtab(subparsers)
    return parser


def _add_measured(command):
    command.add_argument(
        "source", metavar="RUN_OR_MODEL", help="a run's folder, a .keras file, or weights by name or path"
    )
    command.add_argument(
        "assignments", nargs="*", metavar="section.field=value", help="changes of its data; data.dataset=NAME: another"
    )


def _add_fewshot(subparsers):
    fewshot = subparsers.add_parser(
        "fewshot",
        help="measure how well frozen features tell classes apart",
        epilog="A linear classifier is fitted in closed form to a few images of each class (docs/evaluating.md).",
    )
    _add_measured(fewshot)
    add = fewshot.add_argument
    add("--shots", type=_positive, nargs="+", default=(1, 5, 10, 25), metavar="N", help="images a class (1 5 10 25)")
    add("--seeds", type=_positive, default=3, metavar="N", help="how often they are chosen (default: 3)")
    add("--knn", type=_positive, nargs="?", const=20, metavar="K", help="also let the K nearest of all vote (20)")
    add("--csv", type=_new_file, metavar="FILE", help="write the accuracy with each seed to a file")
    fewshot.set_defaults(command=commands.fewshot)


def _add_duplicates(subparsers):
    duplicates = subparsers.add_parser(
        "duplicates",
        help="find test images that are, or nearly are, among the training images",
        epilog="It writes duplicates.html and duplicates.csv; docs/evaluating.md explains them.",
    )
    duplicates.add_argument("recipe", metavar="RECIPE", help="whose training images are searched")
    duplicates.add_argument("assignments", nargs="*", metavar="section.field=value", help="changes of the recipe")
    duplicates.add_argument(
        "--against", metavar="RECIPE", help="whose test and validation images are looked for (default: its own)"
    )
    add = duplicates.add_argument
    add("--to", type=_new_folder, default=pathlib.Path("duplicates"), metavar="FOLDER", help="default: duplicates")
    add("--distance", type=int, choices=range(12), default=11, metavar="BITS", help="between hashes, 0 to 11 (11)")
    add("--correlation", type=float, default=0.9, metavar="X", help="at least, of the brightness (default: 0.9)")
    duplicates.set_defaults(command=commands.duplicates)


def _add_predict(subparsers):
    predict = subparsers.add_parser("predict", help="name what images show, or each of their pixels")
    add = predict.add_argument
    add("source", metavar="RUN_OR_MODEL", help="a run's folder, or a SavedModel")
    add("images", nargs="+", metavar="IMAGE", help="a JPEG, PNG, GIF, BMP or WebP file")
    add("--top", type=_positive, default=5, metavar="N", help="classes to print, of those exported (default: 5)")
    add("--to", type=pathlib.Path, metavar="FOLDER", help="of a segmentation model: where to write masks in colours")
    predict.set_defaults(command=commands.predict)


def _add_explain(subparsers):
    explain = subparsers.add_parser(
        "explain",
        help="look inside a model: attention, positions, filters, neighbours",
        epilog="It writes figures, the numbers behind them, and the page explain.html; docs/explaining.md reads them.",
    )
    add = explain.add_argument
    add("source", metavar="RUN_OR_MODEL", help="a run, .keras file, weights by name or path, or SavedModel (rollout)")
    add("images", nargs="*", metavar="IMAGE", help="a JPEG, PNG, GIF, BMP or WebP file (default: the run's samples)")
    add("--path", type=pathlib.Path, metavar="FOLDER", help="where to (default: figures/explain in a run, or explain)")
    add("--compare", nargs="+", default=(), metavar="RUN", help="more runs, .keras files or weights, beside it")
    add("--neighbours", type=_count, default=5, metavar="N", help="training images like each (default: 5; 0: none)")
    add("--image-size", type=_positive, nargs=2, metavar=("H", "W"), help="for a model of variable input size")
    explain.set_defaults(command=commands.explain)


def _add_export(subparsers):
    export = subparsers.add_parser(
        "export",
        help="write a SavedModel for TensorFlow Serving, or a file for another runtime",
        epilog="What was written is loaded and compared with the model before it appears. docs/serving.md goes on.",
    )
    add = export.add_argument
    add("source", type=pathlib.Path, metavar="RUN_OR_MODEL", help="a run's folder, or a .keras file")
    add("--format", default="saved_model", choices=("saved_model", "onnx", "litert", "openvino"))
    add("--path", type=pathlib.Path, metavar="FOLDER", help="where to (default: export, beside the model)")
    add("--name", help="what clients call it (default: the recipe's name)")
    add("--overwrite", action="store_true", help="replace what is there")
    add("--precision", default="float32", help="of the weights: float32, bfloat16, float16 or int8 (default: float32)")
    add("--tolerance", type=float, metavar="X", help="largest difference of float32 probabilities (default: 1e-5)")
    add("--min-agreement", type=float, metavar="PART", help="of the images, with smaller weights (default: 0.95)")
    add("--images", type=pathlib.Path, nargs="+", metavar="FILE", help="to compare on (default: the run's samples)")
    only = export.add_argument_group("of a SavedModel")
    add = only.add_argument
    add("--version", type=int, metavar="N", help="number of the version (default: the next)")
    add("--labels", type=pathlib.Path, metavar="FILE", help="text file with a class name a line")
    add("--top-k", type=_positive, metavar="N", help="classes that are named (default: 5)")
    add("--jit-compile", action="store_const", const=True, help="compile the model with XLA where it is served")
    add("--batch-sizes", type=_positive, nargs="+", metavar="N", help="expected (default: 1 8 32)")
    add("--image-size", type=_positive, nargs=2, metavar=("H", "W"), help="for a model of variable input size")
    add("--max-image-pixels", type=_positive, metavar="N", help="larger images are not decoded (default: 89478485)")
    export.set_defaults(command=commands.export)


def _add_study(subparsers):
    study = subparsers.add_parser(
        "study",
        help="train models that differ in one thing, as in the paper's ablations, and draw the figure",
        epilog=f"Studies: {', '.join(studies.NAMES)}. What is finished is not done again; docs/studies.md goes on.",
    )
    study.add_argument("name", metavar="NAME", help="of the study")
    study.add_argument(
        "assignments",
        nargs="*",
        metavar="section.field=value",
        help="changes of the recipe; recipe=NAME: another than the digits; run=PATH: the study's folder",
    )
    study.add_argument("--seeds", type=_positive, default=1, metavar="N", help="runs of each point (default: 1)")
    study.set_defaults(command=commands.study)


def _add_vtab(subparsers):
    vtab = subparsers.add_parser(
        "vtab",
        help="fine-tune to the 19 tasks of VTAB-1k, and take the means",
        epilog="What is finished is not done again; docs/studies.md goes on.",
    )
    vtab.add_argument(
        "assignments",
        nargs="*",
        metavar="WEIGHTS|section.field=value",
        help="published weights (default: B/16@i21k); changes of the recipe finetune_vtab; run=PATH: the folder; "
        "tasks=NAME,…: not all",
    )
    vtab.add_argument(
        "--images", type=int, default=1000, choices=(800, 1000), help="to train on (default: 1000); 800: 200 validate"
    )
    vtab.set_defaults(command=commands.vtab)


def _add_plan(subparsers):
    plan = subparsers.add_parser(
        "plan",
        help="say what a run would need: memory and FLOPs of each device, hours",
        epilog="Nothing is trained and no device is needed; docs/scaling.md explains the figures.",
    )
    plan.add_argument("recipe", nargs="?", metavar="RECIPE", help="as for train (default: digits)")
    plan.add_argument(
        "assignments",
        nargs="*",
        metavar="section.field=value",
        help="changes of the recipe; devices=N: devices of all machines together (default: one)",
    )
    plan.add_argument("--images", type=_positive, metavar="N", help="training images (default: of the data set)")
    plan.add_argument("--classes", type=_positive, metavar="N", help="classes (default: of the data set)")
    # The devices are parts of the CPU, whatever this machine has.
    plan.set_defaults(command=commands.plan, environment={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})


def _new_file(text):
    """The path of a file that can be written when the work is done."""
    path = pathlib.Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: name a file in a folder that exists")
    return path


def _new_folder(text):
    """The path of a folder that can be made when the work is done."""
    path = pathlib.Path(text)
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    if not nearest.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be made: {nearest} is not a folder")
    return path


def _count(text):
    return _at_least(0, text)


def _positive(text):
    return _at_least(1, text)


def _at_least(least, text):
    if text.isdecimal() and len(text) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"{text} has more than {_MOST_DIGITS} digits")
    if text.isdecimal() and int(text) >= least:
        return int(text)
    # An option that takes several numbers takes what follows them, too.
    hint = ". Changes of fields stand before the options." if "=" in text else ""
    raise argparse.ArgumentTypeError(f"{text} is no whole number of {least} or more{hint}")
