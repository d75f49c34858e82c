"""Parses the command line."""

import argparse
import sys

from training import recipes
from training.cli import duplicates, evaluate, explain, export, fewshot, plan, predict, records, study, train, vtab
from training.cli.arguments import is_assignment
from training.errors import shortened_lines
from training.files import check_name

_COMMANDS = (train, plan, records, evaluate, fewshot, duplicates, predict, explain, export, study, vtab)
_RECIPE_IS_OPTIONAL = (train.run, plan.run)


def parse(arguments):
    """Parses `arguments`, by default those in `sys.argv`. Returns the options.

    The attribute `command` of the options is the function that runs the command.
    """
    parser = _Parser("python -m training", description="Train Vision Transformers and use them.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(subparsers)
    arguments = sys.argv[1:] if arguments is None else arguments
    for argument in arguments:
        check_name(argument)
    options, rest = parser.parse_known_args(arguments)
    assignments = [argument for argument in rest if is_assignment(argument)]
    unknown = [argument for argument in rest if not is_assignment(argument) or not hasattr(options, "assignments")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if assignments:  # argparse does not accept assignments after an option.
        options.assignments = [*options.assignments, *assignments]
    if is_assignment(getattr(options, "recipe", None) or ""):  # The recipe was left out.
        if options.command not in _RECIPE_IS_OPTIONAL:
            parser.error(
                f"RECIPE is missing before {options.recipe}. Choose {', '.join(recipes.NAMES)}, or a run's recipe.json"
            )
        options.recipe, options.assignments = None, [options.recipe, *options.assignments]
    return options


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        super().error(shortened_lines(message))
