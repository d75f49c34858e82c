"""Measures the accuracy of a model."""

from training.cli.arguments import add_source_arguments


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
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.evaluate import evaluate_source

    print(evaluate_source(options.source, options.assignments, options.split))
