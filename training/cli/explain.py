"""Shows what a model has learned."""

import pathlib

from training.cli.arguments import add_image_size, count


def add_to(subparsers):
    parser = subparsers.add_parser(
        "explain",
        help="show what a model has learned: attention, positions, filters, neighbours",
        epilog="Writes figures, their numbers, and the page explain.html (see docs/explaining.md).",
    )
    add = parser.add_argument
    add("source", metavar="RUN_OR_MODEL", help="run, .keras file, weights by name or path, SavedModel (rollout only)")
    add("images", nargs="*", metavar="IMAGE", help="JPEG, PNG, GIF, BMP or WebP file (default: the run's samples)")
    add("--path", type=pathlib.Path, metavar="FOLDER", help="output folder (default: explain, in a run's figures)")
    add("--compare", nargs="+", default=(), metavar="RUN", help="further runs, .keras files or weights to compare")
    add(
        "--neighbours",
        type=count,
        default=5,
        metavar="N",
        help="number of similar training images per picture (default: 5)",
    )
    add("--texts", nargs="+", default=(), metavar="TEXT", help="where are these texts? For image-text models")
    add_image_size(parser)
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.explain import explain

    page, unreadable = explain(
        *(options.source, options.images, options.path, options.compare, options.neighbours, options.image_size),
        texts=options.texts,
    )
    print(f"{page} (open it in a browser; figures and numbers are in the same folder)")
    return 1 if unreadable else 0
