"""Measures the accuracy of a model."""

from training.cli.arguments import add_measured


def add_to(subparsers):
    parser = subparsers.add_parser("evaluate", help="measure the accuracy of a run's model, or of published weights")
    add_measured(parser)
    parser.add_argument(
        "--split", default="test", choices=("train", "validation", "test", "all"), help="all: of other data"
    )
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.evaluate import evaluate_source

    print(evaluate_source(options.source, options.assignments, options.split))
