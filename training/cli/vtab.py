"""Fine-tunes models on the tasks of VTAB-1k."""

from training.cli.arguments import add_assignments, is_assignment, take


def add_to(subparsers):
    parser = subparsers.add_parser(
        "vtab",
        help="fine-tune on the 19 tasks of VTAB-1k, and average the accuracy",
        epilog="Finished runs are not repeated (see docs/studies.md).",
    )
    add_assignments(
        parser,
        "published weights (default: B/16@i21k); fields of finetune_vtab to change; run=PATH: output folder; "
        "tasks=NAME,…: names of the tasks to run",
        metavar="WEIGHTS|section.field=value",
    )
    help_text = "number of training images (default: 1000); with 800, the remaining 200 are for validation"
    parser.add_argument("--images", type=int, default=1000, choices=(800, 1000), help=help_text)
    parser.set_defaults(command=run)


def run(options):
    from training.studies.vtab import run_vtab

    assignments, folder = take("run", options.assignments)
    assignments, tasks = take("tasks", assignments)
    weights = [text for text in assignments if not is_assignment(text)]
    assignments = [text for text in assignments if is_assignment(text)]
    results = run_vtab(weights, assignments, folder or "runs/vtab", tasks and tasks.split(","), options.images)
    if results is None:
        return
    print(f"\n{results}")
    if any(results.accuracy.values()):
        print(f"\n{folder or 'runs/vtab'}: results.csv, vtab.png")
