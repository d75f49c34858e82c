"""What the splits of a data set contain. A run records it, so that images that it was trained on are recognised later.

    split,path,size,digest,label
    train,cat/1.jpg,51234,9f86d081…,cat
    test,dog/a.jpeg,48100,60303ae2…,dog

A row is an image file, a shard of records, or a part of a data set of TFDS. The label is the class of an image, or the
digest of its mask. The digest of a part of TFDS is its version and its split, such as `mnist/3.0.1:train[0:54000]`.
"""

import csv
import dataclasses
import functools
import hashlib
import io
import pathlib
from typing import Literal

from training.errors import InputError, shortened_names
from training.files import write_text

NEW = "new"  # The split of images that a run's record does not contain.
INITIAL = "initial_weights"  # In a record: images that only the run of the initial weights was trained on.


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """An image file, a shard, or a part of a data set of TFDS. `size` is in bytes, or in images for TFDS."""

    path: str
    size: int
    digest: str
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Contents:
    """The items of each split, in the order of the split: {split: items}."""

    items: dict[str, tuple[Item, ...]]

    @functools.cached_property
    def places(self):
        """{digest: (split, position in the split)}"""
        return {
            item.digest: (split, position) for split, items in self.items.items() for position, item in enumerate(items)
        }

    def split_of(self, item):
        """The split that contains the same image, shard or part, or `None`."""
        return self.places.get(item.digest, (None, None))[0]

    def changes_since(self, earlier):
        """Describes how these contents differ from earlier ones: a list of lines of text."""
        now = {item.digest: item for items in self.items.values() for item in items}
        labels = {(item.digest, item.label) for items in earlier.items.values() for item in items}
        lines = []
        for split, items in earlier.items.items():
            gone = [item.path for item in items if item.digest not in now]
            if gone and split != INITIAL:
                lines.append(f"{len(gone):,} of {len(items):,} {split} files are missing or changed: {_list(gone)}")
        new = [item.path for digest, item in now.items() if digest not in earlier.places]
        other_label = [
            item.path for digest, item in now.items() if digest in earlier.places and (digest, item.label) not in labels
        ]
        other_split = [
            item.path
            for split, items in self.items.items()
            for item in items
            if split != NEW and earlier.split_of(item) not in (None, INITIAL, split)
        ]
        names = {(item.digest, item.path) for items in earlier.items.values() for item in items}
        renamed = [
            item.path for digest, item in now.items() if digest in earlier.places and (digest, item.path) not in names
        ]
        changes = {
            "are new or changed": new,
            "are of another class": other_label,
            "are in another split": other_split,
            "have other names": renamed,
        }
        return lines + [f"{len(paths):,} files {text}: {_list(paths)}" for text, paths in changes.items() if paths]

    def write(self, path):
        """Writes the contents as a CSV file."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(_COLUMNS)
        for split, items in self.items.items():
            rows.writerows([split, item.path, item.size, item.digest, item.label] for item in items)
        write_text(path, text.getvalue())


_COLUMNS = ["split", *(field.name for field in dataclasses.fields(Item))]


def file_problem(path, item, reads=True):
    """Describes how a file differs from the `Item` that was recorded for it, or returns `None`.

    Args:
        path: Path of the file.
        item: `Item`
        reads: Whether to read the file and compare its digest, too.
    """
    try:
        size = path.stat().st_size
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if reads else item.digest
    except OSError as error:
        return error.strerror
    return None if (size, digest) == (item.size, item.digest) else "the file has changed"


def find_problems(contents, directory):
    """{path: problem} of the files that are gone or have changed. Files are read only if all have their size."""
    items = [item for items in contents.items.values() for item in items]
    for reads in (False, True):
        problems = {item.path: file_problem(pathlib.Path(directory, item.path), item, reads) for item in items}
        if any(problems.values()):
            return {path: problem for path, problem in problems.items() if problem}
    return {}


def _list(paths):
    return shortened_names(sorted(paths), 5)


def read_contents(path):
    """Reads the `Contents` that `Contents.write` wrote.

    Raises:
        InputError: If the file is damaged.
    """
    items: dict[str, list[Item]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            columns, *rows = csv.reader(file, strict=True)
        if columns != _COLUMNS:
            raise ValueError(f"its columns are {columns}, not {_COLUMNS}")
        for split, path_of_item, size, digest, label in rows:
            items.setdefault(split, []).append(Item(path_of_item, int(size), digest, label))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read: {error!r}. It lists the images that the run was trained on. Restore the file."
        ) from None
    return Contents({split: tuple(of_split) for split, of_split in items.items()})


@dataclasses.dataclass(frozen=True)
class Record:
    """The contents of the data set of a run, when the run began.

    Args:
        run: Folder of the run, for messages.
        contents: `Contents`
        use: `"measure"`: the model of the run is measured. Images that the run did not have form the split "new".
            `"continue"`: another run starts with the weights of the run, and these images stay in their splits.
            `"resume"`: the run itself goes on.
    """

    run: str
    contents: Contents
    use: Literal["measure", "continue", "resume"] = "measure"

    def seen(self, contents):
        """The items of `contents` that the run was trained on, or that it used to choose its weights."""
        items = [item for items in contents.items.values() for item in items]
        return [item for item in items if self.contents.split_of(item) not in (None, "test")]

    def refuse_seen(self, contents):
        """Raises an InputError if test or validation files of `contents` are training files of the run."""
        shared = [
            item.path
            for split in ("validation", "test")
            for item in contents.items.get(split, ())
            if self.contents.split_of(item) not in (None, split, "test")
        ]
        if shared:
            raise InputError(
                f"{self.run} was trained on {len(shared):,} files that are now in the test or validation split: "
                f"{_list(shared)}. Choose files that it was not trained on."
            )

    def followed_by(self, contents):
        """The contents for the record of a run that starts with the weights of this run."""
        earlier = tuple(
            item
            for split, items in self.contents.items.items()
            for item in items
            if split != "test" and contents.split_of(item) is None
        )
        return Contents(contents.items | ({INITIAL: earlier} if earlier else {}))
