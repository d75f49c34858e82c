"""The report on test images that are among the training images: a table, and a page with the pictures."""

import pathlib
import shlex
import sys
from html import escape

import tensorflow as tf

from keras_vit.decoding import decode_upright
from training.data.loading import load_dataset
from training.data.sets.folder import read_folder
from training.data.subsets import read_labels, select
from training.errors import InputError
from training.files import write_text
from training.inspection.duplicates import CORRELATION, DISTANCE, KINDS, DuplicateFinder
from training.reports import pages
from training.reports.classification import number_list
from training.reports.figures import SMALL_IMAGE, data_uri, encode_picture
from training.reports.tables import write_csv
from training.tasks import require_classification

_COLUMNS = ("split", "image", "train_image", "kind", "distance", "correlation", "label", "train_label", "same_label")
_NUM_SHOWN = 60  # Pairs of pictures, of each split.
_SIDE = 192  # Pixels of the longer side of a picture that is shown.


def find_and_report(recipe, other, folder, distance=DISTANCE, correlation=CORRELATION):
    """Finds a recipe's test and validation images among its training images, and writes what was found.

    Args:
        recipe: `training.recipe.config.Recipe` whose training images are searched.
        other: The recipe whose test and validation images are looked for.
        folder: Path of the folder to which `duplicates.csv` and `duplicates.html` are written.
        distance: As of `training.inspection.duplicates.DuplicateFinder`.
        correlation: As of `training.inspection.duplicates.DuplicateFinder`.

    Returns:
        Text of some lines.

    Raises:
        InputError: If there are no training images, or the data or the folder are not to be had.
    """
    for each in (recipe, other):
        require_classification(each, "duplicates")
    known = load_dataset(recipe.data, disjoint=False)  # What splits share is what is looked for.
    others = known if other == recipe else load_dataset(other.data, disjoint=False)
    finder = DuplicateFinder(known.source("train"), distance, correlation)
    train = _Images(known, "train", recipe.data)
    found = []
    for split in [name for name in ("test", "validation") if name in others.splits]:
        images = _Images(others, split, other.data)
        found.append((images, finder.find(others.splits[split])))
    has_labels = known.class_names == others.class_names and all(map(_has_one_label, [train, *(of for of, _ in found)]))
    rows = [_row(images, train, duplicate, has_labels) for images, some in found for duplicate in some]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror}. Name another with --to FOLDER.") from None
    write_csv(folder / "duplicates.csv", [_COLUMNS, *([row.get(column) for column in _COLUMNS] for row in rows)])
    title = recipe.data.dataset if other == recipe else f"{other.data.dataset} in {recipe.data.dataset}"
    facts = {"distance": distance, "correlation": correlation}
    write_text(folder / "duplicates.html", _page(title, found, train, rows, facts))
    return "\n".join([*_verdict(found, train, rows), f"{folder / 'duplicates.html'}, {folder / 'duplicates.csv'}"])


class _Images:
    """The images of a split, what they are called, and their labels."""

    def __init__(self, dataset, split, data):
        self.split, self.class_names, self.source = split, dataset.class_names, dataset.splits[split]
        self._files = self._labels = None
        self.are_drawn = split == "train" and data.train_images is not None
        if data.dataset == "folder" and not self.are_drawn:
            folder = read_folder(data.directory, data.test_fraction, data.validation_fraction)
            self._files = [path for path, _ in folder.splits[split]]

    def name(self, index):
        """The path of an image, or its number in the split, or among those drawn of it."""
        return self._files[index] if self._files else index

    def label(self, index):
        if self._labels is None:
            self._labels = read_labels(self.source, f"the {self.split} split")
        return self.class_names[self._labels[index]]

    def pictures(self, indices):
        """{index: uint8 (h, w, 3)} of some images, small enough to be shown."""
        chosen = sorted(set(indices))
        if not chosen:
            return {}
        examples = select(self.source, chosen).in_order().map(lambda example: _shrunk(example["image"]))
        return dict(zip(chosen, examples.as_numpy_iterator(), strict=True))


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)  # Traced once.
def _shrunk(image_bytes):
    """The pixels of an image, small enough to be shown."""
    image = decode_upright(image_bytes, 3)
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    size = tf.round(size * tf.minimum(1.0, _SIDE / tf.reduce_max(size)))
    return tf.image.resize(image, tf.maximum(1, tf.cast(size, tf.int32)), antialias=True)


def _has_one_label(images):
    return images.source.in_order().element_spec["label"].shape.rank == 0


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


def _verdict(found, train, rows):
    """Sentences on what was found."""
    for images, duplicates in found:
        kinds = [f"{kind} {count:,}" for kind in KINDS if (count := sum(one.kind == kind for one in duplicates))]
        yield (
            f"{len(duplicates):,} of {images.source.size:,} {images.split} images "
            f"({len(duplicates) / images.source.size:.2%}) are like one of the {train.source.size:,} training images"
            f"{': ' if kinds else ''}{', '.join(kinds)}."
        )
    others = [row for row in rows if row.get("same_label") is False]
    if others:
        yield f"{len(others):,} of them have another label than that one."
    if rows and train.are_drawn:
        yield "Training images are named by their place, from 0, among those that data.train_images draws."


def _page(title, found, train, rows, facts):
    numbers = [
        (f"{images.split.capitalize()} images found", f"{len(some):,}", f"of {images.source.size:,}")
        for images, some in found
    ]
    if rows and "same_label" in rows[0]:
        disagreements = sum(not row["same_label"] for row in rows)
        numbers.append(("Label disagreements", f"{disagreements:,}", "the training image has another label"))
    return pages.page(
        "duplicates",
        kind="Test images that are like training images",
        heading=title,
        title=f"{title}: {len(rows):,} found",
        **facts,
        verdict="".join(f"<p>{escape(sentence)}</p>\n" for sentence in _verdict(found, train, rows)),
        numbers=number_list(numbers),
        sections="\n".join(_section(images, train, some, rows) for images, some in found if some),
        command=escape(shlex.join(["python", "-m", "training", *sys.argv[1:]])),
    )


def _section(images, train, duplicates, rows):
    """Pairs of pictures: those with another label first, then those that are least alike."""
    own = [row for row in rows if row["split"] == images.split]
    pairs = sorted(
        zip(duplicates, own, strict=True), key=lambda pair: (pair[1].get("same_label", True), pair[0].correlation)
    )[:_NUM_SHOWN]
    pictures = images.pictures([duplicate.index for duplicate, _ in pairs])
    known = train.pictures([duplicate.train_index for duplicate, _ in pairs])
    items = "\n".join(
        f"<li>{_picture(pictures[duplicate.index], images.split, row['image'])}"
        f"{_picture(known[duplicate.train_index], 'training', row['train_image'])}{_caption(duplicate, row)}"
        for duplicate, row in pairs
    )
    which = "All" if len(pairs) == len(duplicates) else f"{len(pairs)} of {len(duplicates):,}"
    return (
        f"<h2>{images.split.capitalize()} images</h2>\n<figure>\n<p>{which}, each beside its training image.</p>\n"
        f'<ul class="pictures pairs">\n{items}\n</ul>\n'
        f"<figcaption>Those with another label first, then those that are least alike.</figcaption>\n</figure>\n"
    )


def _picture(image, split, name):
    size = "class=small " if max(image.shape[:2]) < SMALL_IMAGE else ""
    return f'<img {size}src="{data_uri(*encode_picture(image))}" alt="{escape(split)} image {escape(str(name))}">'


def _caption(duplicate, row):
    names = " · ".join(escape(pathlib.PurePath(str(row[name])).name) for name in ("image", "train_image"))
    label = ""
    if "label" in row:
        label = row["label"] if row["same_label"] else f"{row['label']} / {row['train_label']}"
    alike = "" if duplicate.kind in KINDS[:2] else f", {duplicate.distance} bits, {duplicate.correlation:.3f}"
    return f"<span>{escape(label)} <span class=note>{duplicate.kind}{alike}<br>{names}</span></span>"
