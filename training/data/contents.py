"""What the splits of a data set contain. A run records it, so that images that it was trained on are recognised later.

    split,path,size,digest,label
    train,cat/1.jpg,51234,9f86d081…,cat
    test,dog/a.jpeg,48100,60303ae2…,dog

A row is an image file, a shard of records, or a part of a data set of TFDS. The label is the class of an image, or the
digest of its annotation, such as a mask. The digest of a part of TFDS is its version and its split, such as
`mnist/3.0.1:train[0:54000]`.
"""

import collections
import csv
import dataclasses
import functools
import math
from typing import Literal

from training.errors import InputError, shortened_names
from training.files import write_csv

NEW_SPLIT = "new"
"""The split of images that a run did not have."""
INITIAL_WEIGHTS = "initial_weights"
"""In a record, the split of images that only the run of the initial weights or of the teacher was trained on."""


_MERGED = ("test", "validation", INITIAL_WEIGHTS, "train")
"""The splits of records. Of an image in several records, the last of these splits counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """An image file, a shard, or a part of a data set of TFDS. `size` is in bytes, or in images for TFDS."""

    path: str
    size: int
    digest: str
    label: str = ""


_COLUMNS = ["split", *(field.name for field in dataclasses.fields(Item))]


@dataclasses.dataclass(frozen=True)
class Contents:
    """The items of each split, in the order of the split: {split: items}. Copies of an image are in the same split."""

    items: dict[str, tuple[Item, ...]]

    def __iter__(self):
        """All items."""
        for items in self.items.values():
            yield from items

    @functools.cached_property
    def _splits(self):
        """{digest: split}"""
        return {item.digest: split for split, items in self.items.items() for item in items}

    @functools.cached_property
    def _positions(self):
        """{digest: {path: position in the split}}"""
        positions = collections.defaultdict(dict)
        for items in self.items.values():
            for position, item in enumerate(items):
                positions[item.digest][item.path] = position
        return positions

    def split_of(self, item):
        """The split that contains the same image, shard or part, or `None`."""
        return self._splits.get(item.digest)

    def position_of(self, item):
        """The position of an item in its split. Copies are distinguished by their paths. Unknown items are last."""
        positions = self._positions.get(item.digest, {})
        return positions.get(item.path, min(positions.values(), default=math.inf))

    def changes_since(self, earlier):
        """The differences from earlier contents: {kind of difference: sorted paths}, without empty lists."""
        digests, known = {item.digest for item in self}, list(earlier)
        labels, paths = ({(item.digest, getattr(item, name)) for item in known} for name in ("label", "path"))
        recognized = [(split, item) for split, items in self.items.items() for item in items if earlier.split_of(item)]
        changes = {
            f"missing or changed in the {split} split": [item.path for item in items if item.digest not in digests]
            for split, items in earlier.items.items()
            if split != INITIAL_WEIGHTS
        }
        changes["new or changed"] = [item.path for item in self if earlier.split_of(item) is None]
        changes["with another annotation"] = [
            item.path for _, item in recognized if (item.digest, item.label) not in labels
        ]
        changes["in another split"] = [
            item.path
            for split, item in recognized
            if split != NEW_SPLIT and earlier.split_of(item) not in (INITIAL_WEIGHTS, split)
        ]
        changes["with another name"] = [item.path for _, item in recognized if (item.digest, item.path) not in paths]
        return {kind: sorted(paths) for kind, paths in changes.items() if paths}

    def write(self, path):
        """Writes the contents as a CSV file."""
        rows = [(split, *dataclasses.astuple(item)) for split, items in self.items.items() for item in items]
        write_csv(path, [_COLUMNS, *rows])


def change_lines(changes):
    """Lines of text that describe the result of `Contents.changes_since`."""
    return [f"{kind}: {shortened_names(paths, 5)}" for kind, paths in changes.items()]


def read_contents(path):
    """Reads the `Contents` that `Contents.write` wrote.

    Raises:
        InputError: If the file is damaged.
    """
    items = collections.defaultdict(list)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            columns, *rows = csv.reader(file, strict=True)
        if columns != _COLUMNS:
            raise ValueError(f"its first line is {columns}, not {_COLUMNS}")
        for split, path_of_item, size, digest, label in rows:
            items[split].append(Item(path_of_item, int(size), digest, label))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read: {error}. It lists the images that the run was trained on. Restore the file."
        ) from None
    return Contents({split: tuple(listed) for split, listed in items.items()})


@dataclasses.dataclass(frozen=True)
class Record:
    """The contents of the data set of a run, when the run began.

    Args:
        run: Folder of the run, for messages.
        contents: `Contents`
        purpose: `"measure"`: the model of the run is measured on the data set of the run. `"measure_elsewhere"`: it is
            measured on other data. `"continue"`: another run starts with the weights of the run. `"resume"`: the run
            itself goes on.
    """

    run: str
    contents: Contents
    purpose: Literal["measure", "measure_elsewhere", "continue", "resume"] = "measure"

    def is_measured_on(self, contents):
        """Whether the run is measured on the data set of the run, or on a copy with at least half of its items.

        Images that only the run of the initial weights was trained on do not belong to the data set of the run.
        """
        if self.purpose != "measure_elsewhere":
            return self.purpose == "measure"
        splits = self.contents.items.items()
        recorded = {item.digest for split, items in splits if split != INITIAL_WEIGHTS for item in items}
        return 2 * len(recorded.intersection(item.digest for item in contents)) >= len(recorded) > 0

    def seen(self, contents):
        """The items of `contents` that the run was trained on, or that it used to choose its weights."""
        return [item for item in contents if self.contents.split_of(item) not in (None, "test")]

    def has_seen(self, item, split):
        """Whether an item of a validation or test split was, in the run, in a split that this split must not share."""
        return self.contents.split_of(item) not in (None, "test", split)

    def refuse_tests_on_seen_shards(self, contents):
        """Raises an InputError if validation or test shards of `contents` are training shards of the run."""
        shared = [
            item.path
            for split in ("validation", "test")
            for item in contents.items.get(split, ())
            if self.has_seen(item, split)
        ]
        if shared:
            raise InputError(
                f"{self.run} was trained on shards that are now in the validation or test split: "
                f"{shortened_names(shared, 5)}. Choose data that it was not trained on."
            )

    def followed_by(self, contents):
        """The contents for the record of a run that starts with the weights of this run."""
        earlier = tuple(item for item in self.seen(self.contents) if contents.split_of(item) is None)
        return Contents(contents.items | ({INITIAL_WEIGHTS: earlier} if earlier else {}))


def merge_records(records):
    """A `Record` of all images that one of several runs was trained on. `None` if there are no records."""
    if len(records) < 2:
        return records[0] if records else None
    splits = sorted({split for record in records for split in record.contents.items}, key=_MERGED.index)
    items = {
        split: tuple(item for record in records for item in record.contents.items.get(split, ())) for split in splits
    }
    return dataclasses.replace(records[0], run=" or ".join(record.run for record in records), contents=Contents(items))
