"""Measures the accuracy of a model."""

from training.cli.arguments import add_source_arguments
from training.errors import InputError


def add_to(subparsers):
    parser = subparsers.add_parser("evaluate", help="measure the accuracy of a run's model or of published weights")
    add_source_arguments(parser)
    splits = ("train", "validation", "test", "new", "all")
    parser.add_argument(
        "--split",
        default="test",
        choices=splits,
        help="split (default: test); new: images that were added since the training; all is only for data sets that "
        "the model was not trained on",
    )
    parser.add_argument(
        "--names",
        metavar="FILE",
        help="classify without training: text file with the names of the classes, for an image-text model. A line is a "
        "class, as in the data: cat, or LABEL=name, other name",
    )
    parser.add_argument(
        "--templates",
        metavar="NAME",
        help="with --names: sentences about the classes: name, photo, clip_best (default), clip, or a sentence with {}",
    )
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.evaluate import evaluate_source

    if options.templates and not options.names:
        raise InputError(f"--templates={options.templates} are sentences about the names of classes. Add --names FILE.")
    templates = options.templates or "clip_best"
    print(evaluate_source(options.source, options.assignments, options.split, options.names, templates))
