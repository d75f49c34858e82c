"""Trains models that differ in one setting."""

import pathlib
import shlex
import sys

from training.cli.arguments import add_assignments, positive, take
from training.studies import papers


def add_to(subparsers):
    parser = subparsers.add_parser(
        "study",
        help="train models that differ in one setting, as in the paper's ablations, and plot the results",
        epilog=f"Studies: {', '.join(papers.NAMES)}. Finished runs are not repeated (see docs/studies.md).",
    )
    add = parser.add_argument
    add("name", metavar="NAME", help="name of the study")
    add_assignments(
        parser, "change the recipe; recipe=NAME: another recipe; run=PATH: folder of the runs (default: runs/studies)"
    )
    add("--seeds", type=positive, default=1, metavar="N", help="runs per setting (default: 1)")
    add("--jobs", type=positive, default=1, metavar="N", help="runs at a time, each on its share of the cores")
    add("--results", metavar="PATH", help="folder of the tables, figures and pages (default: that of the runs)")
    parser.set_defaults(command=run)


def run(options):
    from training.studies.results import table
    from training.studies.running import Options, run_study

    assignments, folder = take("run", options.assignments)
    assignments, recipe = take("recipe", assignments)
    runs = pathlib.Path(folder or "runs/studies")
    results = pathlib.Path(options.results or runs)
    chosen = Options(tuple(assignments), recipe, runs, results, options.seeds, options.jobs)
    command = shlex.join(["python", "-m", "training", *sys.argv[1:]])
    rows = run_study(options.name, papers.load(options.name), chosen, command)
    if rows is not None:
        print(f"\n{table(rows)}\n\n{results}: {options.name}.csv, {options.name}.png, {options.name}.md")
