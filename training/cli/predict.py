"""Classifies or segments images."""

import pathlib

from training.cli.arguments import positive


def add_to(subparsers):
    parser = subparsers.add_parser("predict", help="classify or segment images")
    add = parser.add_argument
    add("source", metavar="RUN_OR_MODEL", help="folder of a run, or SavedModel")
    add("images", nargs="+", metavar="IMAGE", help="JPEG, PNG, GIF, BMP or WebP file")
    add("--top", type=positive, default=5, metavar="N", help="number of classes to print (default: 5)")
    add("--to", type=pathlib.Path, metavar="FOLDER", help="output folder for coloured masks, for segmentation models")
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.predict import predict

    return 1 if predict(options.source, options.images, options.top, options.to) else 0
