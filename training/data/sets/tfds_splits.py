"""Splits of a data set of TFDS, such as `train[:80%]+validation`, and the images in them.

A split consists of pieces. A piece `(name, first, end)` contains the images from number `first` to number `end - 1` of
the data set's split `name`.
"""

import itertools
import re

import tensorflow_datasets as tfds

from training.data.contents import Contents, Item
from training.data.sources import cut
from training.errors import InputError

_TEST_FRACTION, _VALIDATION_FRACTION = 0.2, 0.1  # Fractions of the splits that an error message suggests.


def split_names(builder, label, data):
    """Returns {split: split string of TFDS}: the splits that the recipe names, or else those of the data set.

    Args:
        builder: `tfds.core.DatasetBuilder` of prepared data.
        label: `training.data.sets.derived_labels.Label`
        data: `training.recipe.config.Data`

    Raises:
        InputError: If a split is empty, cannot be read, or has images without the label.
    """
    available = builder.info.splits
    names = {
        # The data set of ImageNet's re-assessed labels has no training images.
        "train": data.train_split or ("train" if "train" in available else None),
        "test": data.test_split or ("test" if "test" in available else "validation"),
        "validation": data.validation_split,
    }
    names = {name: _checked(builder, label, name, split) for name, split in names.items() if split}
    if data.train_split or data.validation_split or "train" not in names:
        return names
    if "validation" in available and _without(pieces(builder, "validation"), pieces(builder, names["test"])):
        return names | {"validation": _checked(builder, label, "validation", "validation")}
    if data.validation_fraction:
        kept = _num_kept(available["train"].num_examples, data.validation_fraction)
        parts = {"train": f"train[:{kept}]", "validation": f"train[{kept}:]"}
        return names | {name: _checked(builder, label, name, split) for name, split in parts.items()}
    return names


def _checked(builder, label, name, split):
    try:
        parts = pieces(builder, split)
        unlabelled = any(piece[0] in label.absent_from for piece in parts)
        if num_images(parts) and not unlabelled:
            return split
        problem = "has images without the chosen label" if unlabelled else "is empty"
    except (KeyError, ValueError) as error:
        problem = f"cannot be read: {error}"
    raise InputError(
        f"The {name} split {split!r} of {builder.name} {problem}. The splits of {builder.name} are "
        f"{', '.join(f'{name} ({part.num_examples:,})' for name, part in builder.info.splits.items())}."
    ) from None


def overlap_message(builder, names):
    """Returns a message that suggests disjoint splits if two splits contain the same images, otherwise `None`.

    Args:
        builder: `tfds.core.DatasetBuilder` of prepared data.
        names: {split: split string of TFDS}
    """
    by_split = {name: pieces(builder, split) for name, split in names.items()}
    for one, other in itertools.combinations(by_split, 2):
        shared = _shared(by_split[one], by_split[other])
        if shared:
            return (
                f"The {one} split {names[one]!r} and the {other} split {names[other]!r} of {builder.name} both "
                f"contain {as_split(shared)}. "
                f"{_remedy(by_split.get('train', []), by_split.get('validation', []), by_split['test'])}"
            )
    return None


def list_contents(builder, names):
    """The `training.data.contents.Contents` of {split: split string of TFDS}. An item is a piece."""

    def item(piece):
        text = f"{builder.info.full_name}:{as_split([piece])}"
        return Item(text, num_images([piece]), text)

    return Contents({name: tuple(map(item, pieces(builder, split))) for name, split in names.items()})


def refuse_tests_on_seen_pieces(builder, names, record):
    """Raises an InputError if test or validation images are training images of a run.

    Another version of the data set may have its images in another order. Then each split that the run was trained on
    is refused as a whole.

    Args:
        builder: `tfds.core.DatasetBuilder` of prepared data.
        names: {split: split string of TFDS}
        record: `training.data.contents.Record` of the run.
    """
    for name in ("validation", "test"):
        measured = pieces(builder, names[name]) if name in names else []
        for split, items in record.contents.items.items():
            if split in (name, "test"):
                continue
            trained = [piece for item in items for piece in _recorded(builder, item)]
            if _shared(measured, trained):
                raise InputError(
                    f"{record.run} was trained on {', '.join(item.path for item in items)}, which contains images of "
                    f"the {name} split {as_split(measured)} of {builder.info.full_name}. Choose another {name} split, "
                    f"or the version that the run used."
                )


def _recorded(builder, item):
    """Yields the pieces of a data set that a recorded item covers."""
    match = re.fullmatch(r"(.+)/([^/]+):([^:\[]+)\[(\d+):(\d+)\]", item.path)
    if match is None or match[1] != "/".join(builder.info.full_name.split("/")[:-1]):
        return
    if match[2] == str(builder.version):
        yield match[3], int(match[4]), int(match[5])
    elif match[3] in builder.info.splits:
        yield match[3], 0, builder.info.splits[match[3]].num_examples


def _remedy(train, validation, test):
    """A sentence that suggests disjoint splits. The test split changes only if it contains all training images."""
    rest = _without(train, test)
    if not rest:
        rest, test = _divide(train, _TEST_FRACTION)
    kept_out = _without(validation, test)
    if validation and not (kept_out and _without(rest, kept_out)):
        rest, kept_out = _divide(rest, _VALIDATION_FRACTION)
    splits = {"train": _without(rest, kept_out), "validation": kept_out, "test": test}
    if not (splits["train"] and test):
        return "Choose disjoint splits."
    assignments = " ".join(f"data.{name}_split={as_split(parts) or 'none'}" for name, parts in splits.items())
    return f"Choose disjoint splits, such as {assignments} data.validation_fraction=0"


def pieces(builder, split):
    """The pieces of a split, in order."""
    split_pieces = []
    for piece in tfds.core.ReadInstruction.from_spec(split).to_absolute(builder.info.splits):
        end = builder.info.splits[piece.splitname].num_examples if piece.to is None else piece.to
        split_pieces.append((piece.splitname, piece.from_ or 0, end))
    return [piece for piece in split_pieces if piece[1] < piece[2]]


def as_split(split_pieces):
    """The split string of TFDS for pieces."""
    return "+".join(f"{name}[{first}:{end}]" for name, first, end in split_pieces)


def _without(split_pieces, removed):
    """The pieces that remain of `split_pieces` if the images of the pieces `removed` are removed."""
    for other, start, stop in removed:
        parts = []
        for name, first, end in split_pieces:
            borders = [(first, min(end, start)), (max(first, stop), end)] if name == other else [(first, end)]
            parts += [(name, low, high) for low, high in borders if low < high]
        split_pieces = parts
    return split_pieces


def _shared(one, other):
    """The pieces of the images that are in the pieces of both lists."""
    return _without(one, _without(one, other))


def num_images(split_pieces):
    """The number of images in pieces."""
    return sum(end - first for _, first, end in split_pieces)


def _divide(split_pieces, fraction):
    """Divides pieces into two lists. The second list has about `fraction` of the images."""
    size = num_images(split_pieces)
    kept = _num_kept(size, fraction)
    return list(cut(split_pieces, 0, kept)), list(cut(split_pieces, kept, size))


def _num_kept(total, fraction):
    """The number of images that remain if a fraction is held out. At least one image is held out and one remains."""
    return min(max(total - round(fraction * total), 1), total - 1)
