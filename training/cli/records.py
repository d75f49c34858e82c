"""Writes a data set as TFRecord shards."""

import shlex

from training import recipes
from training.cli.arguments import add_assignments


def add_to(subparsers):
    parser = subparsers.add_parser("records", help="write a data set as TFRecord shards, to a bucket or shared disk")
    parser.add_argument("recipe", metavar="RECIPE", help="recipe of the data set")
    add_assignments(parser, "change fields of the recipe")
    parser.add_argument("--to", required=True, metavar="DIRECTORY", help="output folder, e.g. gs://bucket/folder")
    parser.set_defaults(command=run)


def run(options):
    from training.data.sets.records import write_records
    from training.recipe.assignments import override
    from training.tasks import TASKS, require_task

    recipe = override(recipes.load(options.recipe), options.assignments)
    require_task(recipe, "records")
    task = TASKS[recipe.task](recipe)
    num_shards = write_records(task.load(), options.to, task.annotation)
    print(f"{num_shards} shards in {options.to}. Train on them with:")
    print(f"  data.dataset=records data.directory={shlex.quote(options.to)}")
