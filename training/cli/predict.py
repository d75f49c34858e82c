"""Predicts the classes, values, objects, masks or depth of images."""

import pathlib

from training.cli.arguments import positive, share


def add_to(subparsers):
    parser = subparsers.add_parser("predict", help="predict classes, values, objects, masks or depth of images")
    add = parser.add_argument
    add("source", metavar="RUN_OR_MODEL", help="folder of a run, or SavedModel")
    add(
        "images",
        nargs="+",
        metavar="IMAGES",
        help="image file (JPEG, PNG, GIF, BMP or WebP), folder of images, .txt file of paths, .csv, .tsv or "
        ".parquet table with a column path, .tar archive, .tfrecord file, or tfds:NAME:SPLIT",
    )
    add(
        "--top",
        type=positive,
        default=5,
        metavar="N",
        help="number of classes (default: 5); of several labels, all are predicted",
    )
    add(
        "--to",
        type=pathlib.Path,
        metavar="PATH",
        help=".csv, .jsonl or .parquet file for the predictions, or folder for pictures and files of masks, objects, "
        "depth or normals",
    )
    add(
        "--threshold",
        type=share,
        default=0.5,
        metavar="P",
        help="lowest probability of a label, or score of an object (default: 0.5)",
    )
    add("--batch-size", type=positive, default=32, metavar="N", help="number of images computed together (default: 32)")
    parser.set_defaults(command=run)


def run(options):
    from training.inspection.predict import predict

    unreadable = predict(options.source, options.images, options.top, options.to, options.batch_size, options.threshold)
    return 1 if unreadable else 0
