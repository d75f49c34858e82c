"""Fine-tunes to the tasks of VTAB-1k."""

from training.cli.arguments import is_assignment, take


def add_to(subparsers):
    parser = subparsers.add_parser(
        "vtab",
        help="fine-tune to the 19 tasks of VTAB-1k, and take the means",
        epilog="What is finished is not done again; docs/studies.md goes on.",
    )
    parser.add_argument(
        "assignments",
        nargs="*",
        metavar="WEIGHTS|section.field=value",
        help="published weights (default: B/16@i21k); changes of the recipe finetune_vtab; run=PATH: the folder; "
        "tasks=NAME,…: not all",
    )
    parser.add_argument(
        "--images", type=int, default=1000, choices=(800, 1000), help="to train on (default: 1000); 800: 200 validate"
    )
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
