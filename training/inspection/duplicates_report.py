"""Reports test images that duplicate training images: a table, and a page with the pictures."""

import pathlib
import shlex
import sys
from html import escape

import tensorflow as tf

from keras_vit.data.decoding import decode_upright
from training.data.loading import load_dataset
from training.data.sets.folder import read_folder
from training.data.subsets import read_labels, select
from training.files import make_folder, write_csv, write_text
from training.inspection.duplicates import CORRELATION, DISTANCE, KINDS, DuplicateFinder
from training.reports import pages
from training.reports.parts import number_list, picture
from training.tasks import require_task

_COLUMNS = ("split", "image", "train_image", "kind", "distance", "correlation", "label", "train_label", "same_label")
_NUM_SHOWN = 60  # Maximum number of pairs of pictures on the page for each split.
_SIDE = 192  # Longer side of a picture on the page, in pixels.


def find_and_report(recipe, other, folder, distance=DISTANCE, correlation=CORRELATION):
    """Finds test and validation images that duplicate training images, and writes a table and a page.

    Args:
        recipe: `training.recipe.config.Recipe` of the training images.
        other: Recipe of the test and validation images.
        folder: Path of the folder for `duplicates.csv` and `duplicates.html`.
        distance, correlation: As in `training.inspection.duplicates.DuplicateFinder`.

    Returns:
        The result as lines of text.

    Raises:
        InputError: If there are no training images, or the data cannot be loaded, or the folder cannot be written to.
    """
    for checked in (recipe, other):
        require_task(checked, "duplicates")
    known = load_dataset(recipe.data, disjoint=False)  # Splits may overlap.
    others = known if other == recipe else load_dataset(other.data, disjoint=False)
    finder = DuplicateFinder(known.source("train"), distance, correlation)
    train = _Images(known, "train", recipe.data)
    results = []
    for split in [name for name in ("test", "validation") if name in others.splits]:
        images = _Images(others, split, other.data)
        results.append((images, finder.find(others.splits[split])))
    searched = [train, *(images for images, _ in results)]
    has_labels = known.class_names == others.class_names and all(
        images.source.in_order().element_spec["label"].shape.rank == 0 for images in searched
    )
    rows = [_row(images, train, found, has_labels) for images, duplicates in results for found in duplicates]
    make_folder(folder, "Choose another --to FOLDER.")
    write_csv(folder / "duplicates.csv", [_COLUMNS, *([row.get(column) for column in _COLUMNS] for row in rows)])
    title = recipe.data.dataset if other == recipe else f"{other.data.dataset} in {recipe.data.dataset}"
    limits = {"distance": distance, "correlation": correlation}
    write_text(folder / "duplicates.html", _page(title, results, train, rows, limits))
    return "\n".join([*_verdict(results, train, rows), f"{folder / 'duplicates.html'}, {folder / 'duplicates.csv'}"])


class _Images:
    """The images of a split, with their names and labels."""

    def __init__(self, dataset, split, data):
        self.split, self.class_names, self.source = split, dataset.class_names, dataset.splits[split]
        self._files = self._labels = None
        self.is_subset = split == "train" and data.train_images is not None
        if data.dataset == "folder" and not self.is_subset:
            folder = read_folder(data.directory, data.test_fraction, data.validation_fraction)
            self._files = [path for path, _ in folder.splits[split]]

    def name(self, index):
        """The path of an image, or its index in the split if the path is unknown.

        If the split is a random subset of the training images, this is the index in the subset.
        """
        return self._files[index] if self._files else index

    def label(self, index):
        if self._labels is None:
            self._labels = read_labels(self.source, f"the {self.split} split")
        return self.class_names[self._labels[index]]

    def pictures(self, indices):
        """{index: uint8 (h, w, 3)} of some images, resized for the page."""
        chosen = sorted(set(indices))
        if not chosen:
            return {}
        examples = select(self.source, chosen).in_order().map(lambda example: _shrunk(example["image"]))
        return dict(zip(chosen, examples.as_numpy_iterator(), strict=True))


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)  # Traced once, because tracing is slow.
def _shrunk(image_bytes):
    """The pixels of an image, resized for the page."""
    image = decode_upright(image_bytes, 3)
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    size = tf.round(size * tf.minimum(1.0, _SIDE / tf.reduce_max(size)))
    return tf.image.resize(image, tf.maximum(1, tf.cast(size, tf.int32)), antialias=True)


def _row(images, train, duplicate, has_labels):
    row = {
        "split": images.split,
        "image": images.name(duplicate.index),
        "train_image": train.name(duplicate.train_index),
        "kind": duplicate.kind,
        "distance": duplicate.distance,
        "correlation": f"{duplicate.correlation:.4f}",
    }
    if has_labels:
        label, train_label = images.label(duplicate.index), train.label(duplicate.train_index)
        row |= {"label": label, "train_label": train_label, "same_label": label == train_label}
    return row


def _verdict(results, train, rows):
    """Yields sentences that summarise the results."""
    for images, duplicates in results:
        kinds = [f"{kind} {count:,}" for kind in KINDS if (count := sum(found.kind == kind for found in duplicates))]
        yield (
            f"{len(duplicates):,} of {images.source.size:,} {images.split} images "
            f"({len(duplicates) / images.source.size:.2%}) are like one of the {train.source.size:,} training images"
            f"{': ' if kinds else ''}{', '.join(kinds)}."
        )
    disagreeing = [row for row in rows if row.get("same_label") is False]
    if disagreeing:
        yield f"{len(disagreeing):,} of these images have a different label than their training image."
    if rows and train.is_subset:
        yield "Training images are listed by their index in the subset that data.train_images selects, from 0."


def _page(title, results, train, rows, limits):
    numbers = [
        (f"Duplicate {images.split} images", f"{len(duplicates):,}", f"of {images.source.size:,}")
        for images, duplicates in results
    ]
    if rows and "same_label" in rows[0]:
        disagreements = sum(not row["same_label"] for row in rows)
        numbers.append(("Label disagreements", f"{disagreements:,}", "the training image has a different label"))
    return pages.page(
        "duplicates",
        kind="Test images that duplicate training images",
        heading=title,
        title=f"{title}: {len(rows):,} duplicates",
        **limits,
        verdict="".join(f"<p>{escape(sentence)}</p>\n" for sentence in _verdict(results, train, rows)),
        numbers=number_list(numbers),
        sections="\n".join(_section(images, train, found, rows) for images, found in results if found),
        command=escape(shlex.join(["python", "-m", "training", *sys.argv[1:]])),
    )


def _section(images, train, duplicates, rows):
    """The pairs of pictures of a split. Pairs with different labels come first, then the least similar pairs."""
    rows = [row for row in rows if row["split"] == images.split]
    pairs = sorted(
        zip(duplicates, rows, strict=True), key=lambda pair: (pair[1].get("same_label", True), pair[0].correlation)
    )[:_NUM_SHOWN]
    pictures = images.pictures([duplicate.index for duplicate, _ in pairs])
    known = train.pictures([duplicate.train_index for duplicate, _ in pairs])
    items = "\n".join(
        "<li>"
        + picture(pictures[duplicate.index], f"{images.split} image {row['image']}")
        + picture(known[duplicate.train_index], f"training image {row['train_image']}")
        + _caption(duplicate, row)
        for duplicate, row in pairs
    )
    which = "All duplicates" if len(pairs) == len(duplicates) else f"{len(pairs)} of {len(duplicates):,} duplicates"
    return (
        f"<h2>{images.split.capitalize()} images</h2>\n<figure>\n<p>{which}, each beside its training image.</p>\n"
        f'<ul class="pictures pairs">\n{items}\n</ul>\n'
        f"<figcaption>Pairs with different labels come first, then the least similar pairs.</figcaption>\n</figure>\n"
    )


def _caption(duplicate, row):
    names = " · ".join(escape(pathlib.PurePath(str(row[name])).name) for name in ("image", "train_image"))
    label = ""
    if "label" in row:
        label = row["label"] if row["same_label"] else f"{row['label']} / {row['train_label']}"
    similarity = "" if duplicate.kind in KINDS[:2] else f", {duplicate.distance} bits, {duplicate.correlation:.3f}"
    return f"<span>{escape(label)} <span class=note>{duplicate.kind}{similarity}<br>{names}</span></span>"
