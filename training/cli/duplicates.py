"""Finds test images that are among the training images."""

import pathlib

from training import recipes
from training.cli.arguments import new_folder


def add_to(subparsers):
    parser = subparsers.add_parser(
        "duplicates",
        help="find test images that are, or nearly are, among the training images",
        epilog="It writes duplicates.html and duplicates.csv; docs/evaluating.md explains them.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="whose training images are searched")
    parser.add_argument("assignments", nargs="*", metavar="section.field=value", help="changes of the recipe")
    parser.add_argument(
        "--against", metavar="RECIPE", help="whose test and validation images are looked for (default: its own)"
    )
    add = parser.add_argument
    add("--to", type=new_folder, default=pathlib.Path("duplicates"), metavar="FOLDER", help="default: duplicates")
    add("--distance", type=int, choices=range(12), default=11, metavar="BITS", help="between hashes, 0 to 11 (11)")
    add("--correlation", type=float, default=0.9, metavar="X", help="at least, of the brightness (default: 0.9)")
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.duplicates_report import find_and_report
    from training.recipe.assignments import override

    recipe = override(recipes.load(options.recipe), options.assignments)
    other = recipes.load(options.against) if options.against else recipe
    print(find_and_report(recipe, other, options.to, options.distance, options.correlation))
