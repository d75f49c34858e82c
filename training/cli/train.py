"""Trains a model."""

import pathlib
import shlex

from training import recipes
from training.cli.arguments import add_assignments, take


def add_to(subparsers):
    parser = subparsers.add_parser(
        "train",
        help="train a model",
        epilog=f"Recipes: {', '.join(recipes.NAMES)}; or the path of a run's recipe.json.",
    )
    parser.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE",
        help="name or path of a recipe (default: that of the run in run=PATH, otherwise digits)",
    )
    add_assignments(parser, "change the recipe; run=PATH: folder of the run")
    parser.add_argument("--show", action="store_true", help="print all fields of the recipe and exit")
    parser.add_argument("--runs", default="runs", metavar="FOLDER", help="parent folder of new runs (default: runs)")
    parser.set_defaults(command=run)


def run(options):
    from training.recipe.assignments import annotated_fields, override, replaced_by_variant

    assignments, folder = take("run", options.assignments)
    if options.recipe is None:
        recipe_path = folder and pathlib.Path(folder) / "recipe.json"
        options.recipe = str(recipe_path) if recipe_path and recipe_path.is_file() else "digits"
    original = recipes.load(options.recipe)
    recipe = override(original, assignments)
    if note := replaced_by_variant(original, recipe, assignments):
        print(note)
    if options.show:
        print(annotated_fields(recipe))
        return
    from training.engine.train import train
    from training.runs.folder import program_path
    from training.tasks import TASKS

    run, evaluation = train(recipe, options.runs, folder)
    if evaluation is None:
        return
    print(f"\nTest {evaluation}")
    print(f"Run folder: {run.folder} (open its report.html)")
    print("Try next:")
    for command in TASKS[recipe.task](recipe).next_commands(
        *(shlex.quote(str(path)) for path in (run.folder, run.samples))
    ):
        print(f"  {program_path()} -m training {command}")
    print(f"  {program_path('tensorboard')} --logdir {shlex.quote(str(run.folder.parent))}")
