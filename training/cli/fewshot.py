"""Measures the few-shot accuracy of frozen features."""

import dataclasses

from training.cli.arguments import add_source_arguments, new_file, positive


def add_to(subparsers):
    parser = subparsers.add_parser(
        "fewshot",
        help="measure the few-shot accuracy of frozen features",
        epilog="A linear classifier is fitted in closed form to a few images of each class (see docs/evaluating.md).",
    )
    add_source_arguments(parser)
    add = parser.add_argument
    add("--shots", type=positive, nargs="+", default=(1, 5, 10, 25), metavar="N", help="images per class (1 5 10 25)")
    add("--seeds", type=positive, default=3, metavar="N", help="number of random choices of these images (default: 3)")
    add(
        "--knn",
        type=positive,
        nargs="?",
        const=20,
        metavar="K",
        help="also classify by the K nearest neighbours (default of K: 20)",
    )
    add("--csv", type=new_file, metavar="FILE", help="write the accuracy of each seed to a file")
    parser.set_defaults(command=run)


def run(options):
    from training.files import write_csv
    from training.inspection.fewshot import Accuracy, measure, table

    rows, sentences = measure(
        options.source, options.assignments, sorted(set(options.shots)), options.seeds, options.knn
    )
    print("\n".join([*sentences, "", table(rows)]))
    if options.csv is not None:
        header = [field.name for field in dataclasses.fields(Accuracy)]
        write_csv(options.csv, [header, *map(dataclasses.astuple, rows)])
