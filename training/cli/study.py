"""Trains models that differ in one setting."""

from training.cli.arguments import add_assignments, positive, take
from training.studies import papers


def add_to(subparsers):
    parser = subparsers.add_parser(
        "study",
        help="train models that differ in one setting, as in the paper's ablations, and plot the results",
        epilog=f"Studies: {', '.join(papers.NAMES)}. Finished runs are not repeated (see docs/studies.md).",
    )
    parser.add_argument("name", metavar="NAME", help="name of the study")
    add_assignments(
        parser, "change the recipe; recipe=NAME: base recipe (default: digits, shortened); run=PATH: output folder"
    )
    parser.add_argument("--seeds", type=positive, default=1, metavar="N", help="runs per setting (default: 1)")
    parser.set_defaults(command=run)


def run(options):
    from training.studies.study import run_study, table

    assignments, folder = take("run", options.assignments)
    assignments, recipe = take("recipe", assignments)
    folder = folder or f"runs/study-{options.name}"
    rows = run_study(options.name, papers.load(options.name), assignments, folder, options.seeds, recipe)
    if rows is not None:
        print(f"\n{table(rows)}\n\n{folder}: results.csv, {options.name}.png")
