"""Says what a run would need."""

import re

from training import recipes
from training.cli.arguments import positive, take
from training.errors import InputError


def add_to(subparsers):
    parser = subparsers.add_parser(
        "plan",
        help="say what a run would need: memory and FLOPs of each device, hours",
        epilog="Nothing is trained and no device is needed; docs/scaling.md explains the figures.",
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="as for train (default: digits)")
    parser.add_argument(
        "assignments",
        nargs="*",
        metavar="section.field=value",
        help="changes of the recipe; devices=N: devices of all machines together (default: one)",
    )
    parser.add_argument("--images", type=positive, metavar="N", help="training images (default: of the data set)")
    parser.add_argument("--classes", type=positive, metavar="N", help="classes (default: of the data set)")
    # The devices are parts of the CPU, whatever this machine has.
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
