"""A directory of photographs, each with a mask of the same name.

    streets/images/0001.jpg
    streets/masks/0001.png      gray or with a palette; values are indices of classes, 255 is void
    streets/classes.txt         one class name per line, from index 0; optional

The directory may instead have the folders streets/train, streets/test and optionally streets/validation. Each of them
contains the folders images and masks.
"""

import pathlib

import numpy as np

from training.data.masks import MAX_CLASSES, VOID, read_values
from training.data.sets.folder import find_splits
from training.data.sets.pairs import check_size, examine_pairs, find_pairs, split_pairs
from training.errors import InputError, shortened_names

_LAYOUT = (
    "Expected the folders images and masks, with pairs of the same name: images/1.jpg and masks/1.png; or the folders "
    "train, test and optionally validation, each with folders images and masks."
)


def read_mask_folder(directory, test_fraction, validation_fraction):
    """Finds the pairs of images and masks in a directory. Splits them with `hold_out`, unless they are already split.

    Args:
        directory: Path of the directory.
        test_fraction: Fraction of the pairs, in (0, 1).
        validation_fraction: Fraction of the remaining pairs, in [0, 1).

    Returns:
        A `training.data.sets.splitting.FolderSplits`.

    Raises:
        InputError: If there are no usable pairs. The message describes what was found and what is expected.
    """
    root, folders = find_splits(directory, "photographs and masks", "the folders images and masks", _LAYOUT)
    pairs_by_split = {split: find_pairs(folder, "masks", (".png",), _LAYOUT) for split, folder in folders.items()}
    given_names = _read_names(root)
    usable, unreadable, problems = examine_pairs(pairs_by_split, _read_mask, "mask", "has no mask {}.png")
    problems |= unreadable
    largest = {image: max(values - {VOID}, default=0) for image, (values, _, _) in usable.items()}
    names = given_names or tuple(f"class_{i}" for i in range(max(largest.values(), default=0) + 1))
    problems |= {
        image: f"its mask has the value {value}, but values must be from 0 to {len(names) - 1}, or {VOID} for void"
        for image, value in largest.items()
        if value >= len(names)
    }
    found = set().union(*(values for image, (values, _, _) in usable.items() if image not in problems))
    expected = f"image with a mask that can be used. {_LAYOUT}"
    fractions = (test_fraction, validation_fraction)
    options = {"class_names": names, "notes": _notes(names, found)}
    folder = split_pairs(root, pairs_by_split, usable, problems, fractions, expected, **options)
    if given_names is None and len(found - {VOID}) < 2:
        raise InputError(
            f"The masks in {root} have no values other than {', '.join(map(str, sorted(found)))}, but a model needs at "
            f"least two classes. Accepted: 0, 1, 2, … for the classes, and {VOID} for void, which is ignored. Write "
            f"the pixels of objects as 1 instead of {VOID}, and name the classes in {root / 'classes.txt'}."
        )
    return folder


def _read_names(root):
    path = root / "classes.txt"
    if not path.is_file():
        return None
    try:
        names = tuple(path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text in UTF-8: {error}") from None
    if not 2 <= len(names) <= MAX_CLASSES or len(set(names)) < len(names) or not all(map(str.strip, names)):
        raise InputError(
            f"{path} must have one class name per line, from 2 to {MAX_CLASSES} names, none empty or repeated. It has "
            f"{len(names)} lines."
        )
    return names


def _read_mask(path, size):
    content = pathlib.Path(path).read_bytes()
    mask = read_values(content)
    check_size(size, mask.shape)
    return set(np.unique(mask).tolist()), content


def _notes(names, values):
    """A sentence about classes that no mask contains, if there are any."""
    absent = [name for index, name in enumerate(names) if index not in values]
    if not absent:
        return ()
    void = f" {VOID} is void: write the pixels of a class as the index of the class." if VOID in values else ""
    received = shortened_names([str(value) for value in sorted(values)])
    return (f"No mask contains these classes: {shortened_names(absent)}. The masks have the values {received}.{void}",)
