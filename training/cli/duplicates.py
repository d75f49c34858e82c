"""Finds test images that duplicate training images."""

import pathlib

from training import recipes
from training.cli.arguments import add_assignments, new_folder


def add_to(subparsers):
    parser = subparsers.add_parser(
        "duplicates",
        help="find test images that are exact or near duplicates of training images",
        epilog="Writes duplicates.html and duplicates.csv to FOLDER (see docs/evaluating.md).",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="recipe of the training images")
    add_assignments(parser, "change fields of the recipe")
    add = parser.add_argument
    add("--against", metavar="RECIPE", help="recipe of the test and validation images (default: RECIPE)")
    add("--to", type=new_folder, default=pathlib.Path("duplicates"), metavar="FOLDER", help="default: duplicates")
    add("--distance", type=int, choices=range(12), default=11, metavar="BITS", help="maximum hash distance (11)")
    add("--correlation", type=float, default=0.9, metavar="X", help="minimum brightness correlation (default: 0.9)")
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.duplicates_report import find_and_report
    from training.recipe.assignments import override

    recipe = override(recipes.load(options.recipe), options.assignments)
    other = recipes.load(options.against) if options.against else recipe
    print(find_and_report(recipe, other, options.to, options.distance, options.correlation))
