"""Looks inside a model."""

import pathlib

from training.cli.arguments import count, positive


def add_to(subparsers):
    parser = subparsers.add_parser(
        "explain",
        help="look inside a model: attention, positions, filters, neighbours",
        epilog="It writes figures, the numbers behind them, and the page explain.html; docs/explaining.md reads them.",
    )
    add = parser.add_argument
    add("source", metavar="RUN_OR_MODEL", help="a run, .keras file, weights by name or path, or SavedModel (rollout)")
    add("images", nargs="*", metavar="IMAGE", help="a JPEG, PNG, GIF, BMP or WebP file (default: the run's samples)")
    add("--path", type=pathlib.Path, metavar="FOLDER", help="where to (default: figures/explain in a run, or explain)")
    add("--compare", nargs="+", default=(), metavar="RUN", help="more runs, .keras files or weights, beside it")
    add("--neighbours", type=count, default=5, metavar="N", help="training images like each (default: 5; 0: none)")
    add("--image-size", type=positive, nargs=2, metavar=("H", "W"), help="for a model of variable input size")
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.explain import explain

    page, unreadable = explain(
        options.source, options.images, options.path, options.compare, options.neighbours, options.image_size
    )
    print(f"{page} (open it in a browser; figures and numbers are beside it)")
    return 1 if unreadable else 0
