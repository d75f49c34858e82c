"""A directory of photographs, each with a mask of the same name.

    streets/images/0001.jpg
    streets/masks/0001.png      gray or with a palette; values are indices of classes, 255 is void
    streets/classes.txt         one class name per line, from index 0; optional

The directory may instead have the folders streets/train, streets/test and optionally streets/validation. Each of them
contains the folders images and masks.
"""

import hashlib

import numpy as np
import PIL.Image

from training.data.masks import MAX_CLASSES, VOID, read_values
from training.data.sets.folder import examine, find_images, find_splits, map_in_threads
from training.data.sets.splitting import FolderSplits, find_copies, hold_out, list_items
from training.errors import InputError, shortened_names

_LAYOUT = (
    "Expected the folders images and masks, with pairs of the same name: images/1.jpg and masks/1.png; or the folders "
    "train, test and optionally validation, each with folders images and masks."
)
_TURNED = (5, 6, 7, 8)  # EXIF orientations that swap height and width.
_ORIENTATION = 0x0112  # Number of the EXIF tag for the orientation.


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
    pairs_by_split = {split: dict(_pairs(folder)) for split, folder in folders.items()}
    given_names = _read_names(root)
    complete = [pair for pairs in pairs_by_split.values() for pair in pairs.items() if None not in pair]
    results = dict(zip((image for image, _ in complete), map_in_threads(_read_pair, complete), strict=True))
    problems = {image: result for image, result in results.items() if isinstance(result, str)}
    readable = {image: result for image, result in results.items() if image not in problems}
    values, digests, mask_digests = ({image: result[i] for image, result in readable.items()} for i in range(3))
    largest = {image: max(found - {VOID}, default=0) for image, found in values.items()}
    names = given_names or tuple(f"class_{i}" for i in range(max(largest.values(), default=0) + 1))
    problems |= {
        image: f"its mask has the value {value}, but values must be from 0 to {len(names) - 1}, or {VOID} for void"
        for image, value in largest.items()
        if value >= len(names)
    }
    by_split, skipped = {}, {}
    for split, pairs in pairs_by_split.items():
        problems |= {image: f"has no mask {image.stem}.png" for image, mask in pairs.items() if mask is None}
        by_split[split] = [image for image in pairs if image not in problems]
        skipped |= {str(image): problems[image] for image in pairs if image in problems}
        if not by_split[split]:
            lines = "".join(f"\n  {path}: {problem}" for path, problem in skipped.items())
            raise InputError(
                f"{folders[split]} has no image with a mask that can be used. {_LAYOUT}"
                + (lines and f" Skipped:{lines}")
            )
    found = set().union(*(values[image] for images in by_split.values() for image in images))
    if given_names is None and len(found - {VOID}) < 2:
        raise InputError(
            f"The masks in {root} have no values other than {', '.join(map(str, sorted(found)))}, but a model needs at "
            f"least two classes. Accepted: 0, 1, 2, … for the classes, and {VOID} for void, which is ignored. Write "
            f"the pixels of objects as 1 instead of {VOID}, and name the classes in {root / 'classes.txt'}."
        )
    fractions = {"test": test_fraction, "validation": validation_fraction}
    missing = {split: fraction for split, fraction in fractions.items() if split not in by_split}
    images_by_split = by_split | hold_out(by_split["train"], missing, digests)
    masks = {image: mask for pairs in pairs_by_split.values() for image, mask in pairs.items()}
    splits = {name: [(str(image), str(masks[image])) for image in images] for name, images in images_by_split.items()}
    labels = {image: mask_digests[image] for images in by_split.values() for image in images}
    items = list_items(root, digests, labels)
    overlap, notes = find_copies(by_split, digests), _notes(names, found)
    return FolderSplits(names, splits, items, root, skipped, overlap, notes, has_split_folders=len(folders) > 1)


def _pairs(folder):
    """Yields (path of an image, path of its mask or `None`), sorted by name."""
    if not ((folder / "images").is_dir() and (folder / "masks").is_dir()):
        raise InputError(f"{folder} has no folders images and masks. {_LAYOUT}")
    for path in find_images(folder / "images"):
        mask = folder / "masks" / path.relative_to(folder / "images").with_suffix(".png")
        yield path, mask if mask.is_file() else None


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


def _read_pair(pair):
    """Returns (values in the mask, (size, digest) of the image, digest of the mask), or a problem as a string."""
    image_path, mask_path = pair
    digest, problem = examine(image_path)
    if problem:
        return problem
    try:
        content = mask_path.read_bytes()
        mask = read_values(content)
        with PIL.Image.open(image_path) as image:
            width, height = image.size
            if image.getexif().get(_ORIENTATION) in _TURNED:
                width, height = height, width
    except (OSError, ValueError) as error:
        return f"its mask cannot be read: {error}"
    if mask.shape != (height, width):
        return f"has {width} x {height} pixels, but its mask has {mask.shape[1]} x {mask.shape[0]}"
    return set(np.unique(mask).tolist()), digest, hashlib.sha256(content).hexdigest()


def _notes(names, values):
    """A sentence about classes that no mask contains, if there are any."""
    absent = [name for index, name in enumerate(names) if index not in values]
    if not absent:
        return ()
    void = f" {VOID} is void: write the pixels of a class as the index of the class." if VOID in values else ""
    received = shortened_names([str(value) for value in sorted(values)])
    return (f"No mask contains these classes: {shortened_names(absent)}. The masks have the values {received}.{void}",)
