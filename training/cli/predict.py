"""Names what images show."""

import pathlib

from training.cli.arguments import positive


def add_to(subparsers):
    parser = subparsers.add_parser("predict", help="name what images show, or each of their pixels")
    add = parser.add_argument
    add("source", metavar="RUN_OR_MODEL", help="a run's folder, or a SavedModel")
    add("images", nargs="+", metavar="IMAGE", help="a JPEG, PNG, GIF, BMP or WebP file")
    add("--top", type=positive, default=5, metavar="N", help="classes to print, of those exported (default: 5)")
    add("--to", type=pathlib.Path, metavar="FOLDER", help="of a segmentation model: where to write masks in colours")
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.predict import predict

    return 1 if predict(options.source, options.images, options.top, options.to) else 0
