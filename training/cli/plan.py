"""Estimates the memory and time that a run needs."""

import re

from training import recipes
from training.cli.arguments import add_assignments, positive, take
from training.errors import InputError


def add_to(subparsers):
    parser = subparsers.add_parser(
        "plan",
        help="estimate the memory, FLOPs and hours that a run needs",
        epilog="Nothing is trained, and no accelerator is needed (see docs/scaling.md).",
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="name or path, as for train (default: digits)")
    add_assignments(parser, "change fields of the recipe; devices=N: number of devices of all machines (default: 1)")
    add = parser.add_argument
    add("--images", type=positive, metavar="N", help="number of training images (default: that of the data set)")
    add("--classes", type=positive, metavar="N", help="number of classes (default: that of the data set)")
    # The devices are simulated on the CPU, even if this machine has accelerators.
    parser.set_defaults(command=run, environment={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})


def run(options):
    from training.planning.plan import plan, with_devices
    from training.recipe.assignments import override

    changes, count = take("devices", options.assignments)
    recipe = override(recipes.load(options.recipe or "digits"), changes)
    count = count or str(recipe.distribution.devices or 1)
    if not re.fullmatch(r"[1-9]\d{0,4}", count, re.ASCII):
        raise InputError(f"devices must be a whole number from 1 to 99,999. Received: {count}")
    print(plan(with_devices(recipe, int(count)), options.images, options.classes))
