"""A data set: the names of its classes, and the source of each split."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from keras_vit.checks import problem_of_class_names
from training.data.contents import NEW_SPLIT, Contents
from training.data.sources import IndexedSource, StreamedSource
from training.errors import InputError


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The class names, and the sources of the splits "train", "test" and optionally "validation".
    `find_overlap` returns a message about images that are in two splits, or `None`. `list_contents` returns the
    contents of the splits. Both are called only if they are needed, because shards are read for them. `no_test_split`
    is a message for data sets without a test split. If the labels are values or depth, `class_names` are their
    names, and `units` their units. `is_thing` says of each class whether it is one of things or of stuff. `list_texts`
    returns the texts of the training images."""

    class_names: tuple[str, ...]
    splits: dict[str, IndexedSource | StreamedSource]
    find_overlap: Callable[[], str | None] = lambda: None
    list_contents: Callable[[], Contents] = lambda: Contents({})
    no_test_split: str = ""
    units: tuple[str, ...] | None = None
    is_thing: tuple[bool, ...] | None = None
    list_texts: Callable[[], list[str]] = list

    @functools.cached_property
    def contents(self):
        """The `training.data.contents.Contents`. Empty if the images are generated."""
        return self.list_contents()

    @functools.cached_property
    def scale(self):
        """Means and standard deviations of the values of the training images, two float64 arrays (values,)."""
        examples = self.source("train").in_order().map(lambda example: example["values"])
        values = np.stack(list(examples.as_numpy_iterator())).astype("float64")
        deviation = values.std(axis=0)
        return values.mean(axis=0), np.where(deviation > 0, deviation, 1.0)

    def __post_init__(self):
        if problem := problem_of_class_names(self.class_names):  # Each class is a line in an export's labels.txt.
            raise InputError(f"The name of a class must be one line of text, but {problem}. Rename the class.")

    def source(self, split):
        """The source of a split. Raises an InputError if the data set does not have the split."""
        if split == NEW_SPLIT and split not in self.splits:
            raise InputError("The data set contains no images that were added since the training of the run.")
        if split not in self.splits:
            explanation = self.no_test_split if split == "test" else ""
            raise InputError(explanation or f"The data set has no {split} split. It has: {', '.join(self.splits)}")
        return self.splits[split]
