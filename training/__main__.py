"""The command line: `python -m training train | plan | evaluate | predict | export`."""

import argparse
import importlib.util
import os
import pathlib
import shlex
import sys
import tempfile

from training import recipes
from training.errors import InputError


def main(arguments=None):
    """Runs one command; returns the process's exit status."""
    options = _parse(arguments)
    try:
        os.environ.update(getattr(options, "environment", {}))
        _import_tensorflow()
        return options.command(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def _parse(arguments):
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    assignments = [argument for argument in rest if "=" in argument and not argument.startswith("-")]
    if rest != assignments or (rest and not hasattr(options, "assignments")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if assignments:  # Those behind an option.
        options.assignments = [*options.assignments, *assignments]
    if "=" in (getattr(options, "recipe", None) or ""):  # No recipe was named.
        options.recipe, options.assignments = None, [options.recipe, *options.assignments]
    return options


def _parser():
    parser = argparse.ArgumentParser("python -m training", description="Train Vision Transformers and use them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser(
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
    train.set_defaults(command=_train)

    _add_plan(commands)

    records = commands.add_parser("records", help="write a data set as TFRecord shards, for a bucket or a shared disk")
    records.add_argument("recipe", metavar="RECIPE", help="whose data set it is")
    records.add_argument("assignments", nargs="*", metavar="section.field=value", help="changes of the recipe")
    records.add_argument("--to", required=True, metavar="DIRECTORY", help="where to, also gs://bucket/folder")
    records.set_defaults(command=_records)

    evaluate = commands.add_parser("evaluate", help="measure the accuracy of a run's model")
    evaluate.add_argument("run", type=pathlib.Path, metavar="RUN", help="a run's folder")
    evaluate.add_argument(
        "assignments", nargs="*", metavar="section.field=value", help="changes of its data; data.dataset=NAME: another"
    )
    evaluate.add_argument("--split", default="test", choices=("train", "validation", "test"), help="default: test")
    evaluate.set_defaults(command=_evaluate)

    predict = commands.add_parser("predict", help="name what images show")
    predict.add_argument("source", metavar="RUN_OR_MODEL", help="a run's folder, or a SavedModel")
    predict.add_argument("images", nargs="+", metavar="IMAGE", help="a JPEG, PNG, GIF, BMP or WebP file")
    predict.add_argument(
        "--top", type=_positive, default=5, metavar="N", help="classes to print, of those exported (default: 5)"
    )
    predict.set_defaults(command=_predict)

    _add_export(commands)
    return parser


def _add_export(commands):
    export = commands.add_parser(
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
    export.set_defaults(command=_export)


def _add_plan(commands):
    plan = commands.add_parser(
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
    plan.set_defaults(command=_plan, environment={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})


def _train(options):
    from training.assignments import describe, override

    assignments, folder = _take("run", options.assignments)
    if options.recipe is None:
        begun = folder and pathlib.Path(folder) / "recipe.json"
        options.recipe = str(begun) if begun and begun.is_file() else "digits"
    recipe = override(recipes.load(options.recipe), assignments)
    if options.show:
        print(describe(recipe))
        return
    from training.runs import program_path
    from training.train import train

    run, evaluation = train(recipe, options.runs, folder)
    if evaluation is None:
        return
    print(f"\nTest {evaluation}")
    print(f"Run folder: {run.folder} (open its report.html)")
    print("Try next:")
    print(f"  {program_path()} -m training predict {shlex.quote(str(run.folder))} {shlex.quote(str(run.samples))}/*")
    print(f"  {program_path()} -m training train folder data.directory=path/to/your/photographs")
    print(f"  {program_path('tensorboard')} --logdir {shlex.quote(options.runs)}")


def _take(name, assignments):
    """The assignments without those of a name, and the value of its last one, or `None`."""
    values = [text.removeprefix(f"{name}=") for text in assignments if text.startswith(f"{name}=")]
    return [text for text in assignments if not text.startswith(f"{name}=")], values[-1] if values else None


def _plan(options):
    from training.assignments import override
    from training.plan import plan, with_devices

    changes, count = _take("devices", options.assignments)
    recipe = override(recipes.load(options.recipe or "digits"), changes)
    count = count or str(recipe.distribution.devices or 1)
    if not count.isdecimal() or not int(count):
        raise InputError(f"devices must be a whole number from 1. Received: {count}")
    print(plan(with_devices(recipe, int(count)), options.images, options.classes))


def _records(options):
    from training.assignments import override
    from training.data import load_dataset
    from training.datasets.records import write_records

    dataset = load_dataset(override(recipes.load(options.recipe), options.assignments).data)
    print(f"{write_records(dataset, options.to)} shards in {options.to}. Train on them with:")
    print(f"  data.dataset=records data.directory={shlex.quote(options.to)}")


def _evaluate(options):
    from training.evaluate import evaluate_run

    print(evaluate_run(options.run, options.assignments, options.split))


def _predict(options):
    from training.predict import predict

    return 1 if predict(options.source, options.images, options.top) else 0


def _export(options):
    from training.export import export

    given = {name: value for name, value in vars(options).items() if value is not None}
    for name in ("command", "environment"):
        given.pop(name, None)
    path, sentence = export(given.pop("source"), **given)
    print(sentence)
    print(path)


def _positive(text):
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _import_tensorflow():
    """Imports TensorFlow without what its C++ code prints about the machine before it reads its log level."""
    backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if backend not in ("tensorflow", "jax"):
        raise InputError(f"These programs run Keras on TensorFlow or JAX. Received: KERAS_BACKEND={backend}")
    if importlib.util.find_spec(backend) is None:
        raise InputError(
            f"KERAS_BACKEND={backend}: {backend} is not installed. Install it with: "
            f"{sys.executable} -m pip install {backend}"
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as silenced:
        os.dup2(silenced.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


if __name__ == "__main__":
    sys.exit(main())
