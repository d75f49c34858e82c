"""The splits of a directory of images: how they are made, and how they follow those of an earlier run."""

import collections
import dataclasses
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

from keras_vit.data.folder import read_file
from training.data.contents import INITIAL_WEIGHTS, NEW_SPLIT, Contents, Item
from training.errors import shortened_names

_MAX_COPIES = 10  # Maximum number of pairs that a message lists.


@dataclasses.dataclass(frozen=True)
class FolderSplits:
    """The contents of a directory.

    `splits` is {split: pairs of an image path and its label}. A label is the index of a class, the path of a mask or
    of a depth map, or an index of annotations. `items` is {path of an image: `training.data.contents.Item`}, and
    `root` is the directory. `skipped` is {path: reason}. `overlap` is a message about images that are in two split
    folders, or `None`. `notes` are sentences for the user. `has_split_folders`: whether the directory has folders for
    splits, such as train and test. `parse` is a function from the text of a label to the label; by default, the label
    is the index of the class with this name. `read` is a function from the path of an image to its contents.
    """

    class_names: tuple[str, ...]
    splits: dict[str, list[tuple[str, Any]]]
    items: dict[str, Item]
    root: pathlib.Path
    skipped: dict[str, str]
    overlap: str | None = None
    notes: tuple[str, ...] = ()
    has_split_folders: bool = False
    parse: Callable | None = None
    read: Callable = read_file

    @property
    def contents(self):
        """The `training.data.contents.Contents` of the splits."""
        return Contents({split: tuple(self.items[path] for path, _ in pairs) for split, pairs in self.splits.items()})

    def consistent_with(self, record):
        """Returns splits in which no test image is an image that a run was trained on.

        If this directory contains the images of the run, each image is in the split in which the run had it. Images
        that the run did not have form the split "new" when the run is measured. In other directories, images that the
        run was trained on are taken out of the validation and test splits.

        Args:
            record: `training.data.contents.Record` of the run.
        """
        if record.purpose == "resume":
            return self._restored(record.contents)
        if record.is_measured_on(self.contents):
            return self._restored(record.contents, NEW_SPLIT)
        return self._without_seen(record)

    def _restored(self, contents, new_split=None):
        """Assigns images to the splits and positions of `contents`. Other images stay in their splits or form one."""
        splits = {split: [] for split in self.splits}
        for split, pairs in self.splits.items():
            for pair in pairs:
                target = contents.split_of(self.items[pair[0]]) or new_split or split
                splits.setdefault("train" if target == INITIAL_WEIGHTS else target, []).append(pair)

        for pairs in splits.values():
            pairs.sort(key=lambda pair: contents.position_of(self.items[pair[0]]))
        restored = dataclasses.replace(self, splits=splits)
        if not self.has_split_folders:
            return restored
        moved = restored.contents.changes_since(self.contents).get("in another split")
        if moved:
            names = shortened_names(moved, 5)
            note = f"These files are in the split that the run used, not in that of their folder: {names}"
            restored = dataclasses.replace(restored, notes=(*self.notes, note))
        return restored

    def _without_seen(self, record):
        """Images that a run was trained on become training images if the run is continued. Else they are left out."""
        splits, seen = dict(self.splits), []
        for split in ("validation", "test"):
            unseen = []
            for pair in splits.get(split, ()):
                (seen if record.has_seen(self.items[pair[0]], split) else unseen).append(pair)
            splits[split] = unseen
        if not seen:
            return self
        names, verb = shortened_names(sorted(self.items[path].path for path, _ in seen), 5), "are no test images"
        if record.purpose == "continue":
            splits["train"], verb = splits["train"] + seen, "are training images"
        note = f"Images that {record.run} was trained on {verb}: {names}"
        return dataclasses.replace(self, splits=splits, notes=(*self.notes, note))

    def completed(self, contents, max_failures):
        """Adds the training images of a run that are gone or have changed, if there are at most `max_failures`.

        They keep their positions, so the batches of the run stay the same.

        Args:
            contents: `training.data.contents.Contents` of the run.
            max_failures: Maximum number of such images.
        """
        counts, counts_now = (
            collections.Counter(item.digest for item in all_) for all_ in (contents, self.items.values())
        )
        present = {(item.path, item.digest) for item in self.items.values()}
        gone = {
            str(self.root / item.path): item
            for item in contents.items.get("train", ())
            if (item.path, item.digest) not in present and counts_now[item.digest] < counts[item.digest]
        }
        if len(gone) > max_failures:
            return self
        parse = self.parse or self.class_names.index
        try:
            labels = {path: parse(item.label) for path, item in gone.items()}
        except ValueError:  # The class of an image is gone.
            return self
        items = self.items | gone
        splits = {split: [pair for pair in pairs if pair[0] not in gone] for split, pairs in self.splits.items()}
        splits["train"] += labels.items()
        splits["train"].sort(key=lambda pair: contents.position_of(items[pair[0]]))
        return dataclasses.replace(self, splits=splits, items=items)


def hold_out(paths, fractions, digests):
    """Assigns paths to splits by a hash of their file and folder names. At least one path remains for training.

    Args:
        paths: `pathlib.Path`s, at least one.
        fractions: {split: fraction of the paths that the previous splits left}. The splits are filled in this order.
        digests: {path: (size, digest) of the file}. Files with the same content are in the same split.

    Returns:
        {split: paths}. The paths that are not held out are in "train".
    """
    held_out, positions = {}, {}
    rest = sorted(paths, key=lambda path: hashlib.sha256(f"{path.parent.name}/{path.name}".encode()).digest())
    for path in rest:
        positions.setdefault(digests[path], len(positions))
    rest.sort(key=lambda path: positions[digests[path]])  # Copies of an image are now adjacent.
    for split, fraction in fractions.items():
        count = min(round(fraction * len(rest)), len(rest) - 1)
        borders = [0, *(i for i in range(1, len(rest)) if digests[rest[i - 1]] != digests[rest[i]])]
        _, count = min((abs(border - count), border) for border in borders)
        held_out[split], rest = rest[:count], rest[count:]
    return held_out | {"train": rest}


def together(splits, digests):
    """Moves copies of an image to one split, if they are in several classes. The first of them is "train".

    Args:
        splits: {split: pairs of an image path and its label}
        digests: {path: (size, digest) of the file}
    """
    order = sorted(splits, key=lambda split: split != "train")
    first = {}
    for split in order:
        for path, _ in splits[split]:
            first.setdefault(digests[path], split)
    moved = {split: [] for split in splits}
    for split in order:
        for pair in splits[split]:
            moved[first[digests[pair[0]]]].append(pair)
    return moved


def find_copies(files, digests, kind="Images", remedy="Remove one file of each pair."):
    """A message that lists the files in two splits and gives a remedy. `None` if there are no such files.

    Args:
        files: {split: paths}
        digests: {path: digest of the file, or (size, digest)}
        kind: What the files are, for the message.
        remedy: Sentence for the message.
    """
    first, copies = {}, []
    for split, paths in files.items():
        for path in paths:
            other, original = first.setdefault(digests[path], (split, path))
            if other != split:
                copies.append(f"\n  {original} ({other}) and {path} ({split})")
    if not copies:
        return None
    more = f"\n  … ({len(copies):,} in all)" if len(copies) > _MAX_COPIES else ""
    return f"{kind} are in two splits:{''.join(copies[:_MAX_COPIES])}{more}\n{remedy}"


def list_items(root, digests, labels):
    """{path of an image: `Item`}. `digests` is {path: (size, digest)}, and `labels` is {path: label}."""
    items = {}
    for path, label in labels.items():
        size, digest = digests[path]
        items[str(path)] = Item(path.relative_to(root).as_posix(), size, digest, label)
    return items
