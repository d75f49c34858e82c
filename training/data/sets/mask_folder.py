"""A directory of photographs and their masks, pairs of the same name.

    streets/images/0001.jpg
    streets/masks/0001.png      gray or with a palette; values are indices of classes, 255 is void
    streets/classes.txt         the name of a class a line, the first that of index 0; may be missing

Or split already, with images and masks inside: streets/train, streets/test and, where there is one, streets/validation.
"""

import concurrent.futures
import dataclasses
import pathlib

import numpy as np
import PIL.Image

from training.data.masks import MOST_CLASSES, VOID, read_values
from training.data.sets.folder import READABLE, examine, find_copies, find_images, hold_out, split_folders
from training.errors import InputError

_LAYOUT = (
    "Expected the folders images and masks, with pairs of the same name: images/1.jpg and masks/1.png; or the folders "
    "train, test and, where there is one, validation, with these inside."
)
_TURNED = (5, 6, 7, 8)  # EXIF orientations of images that lie on their side.
_ORIENTATION = 0x0112


@dataclasses.dataclass(frozen=True)
class MaskFolder:
    """What a directory holds: class names, (image path, mask path) of each split, what was skipped and why, and a
    sentence on images that are in two of its split folders, or `None`."""

    class_names: tuple[str, ...]
    splits: dict[str, list[tuple[str, str]]]
    skipped: dict[str, str]
    overlap: str | None = None


def read_mask_folder(directory, test_fraction, validation_fraction):
    """Finds the pairs of a directory, and splits them unless it is split already, by their names.

    Copies of an image stay together.

    Args:
        directory: Path of the directory.
        test_fraction: Part of the pairs that is held out, in (0, 1).
        validation_fraction: Part of the rest, in [0, 1).

    Returns:
        A `MaskFolder`.

    Raises:
        InputError: If there is nothing to learn from; the message says what was found and what is expected.
    """
    if directory is None:
        raise InputError(f"The folder data set needs data.directory=<path of your photographs and masks>. {_LAYOUT}")
    root = pathlib.Path(directory).expanduser()
    if not root.is_dir():
        raise InputError(f"data.directory={directory} is not a directory. {_LAYOUT}")
    folders = split_folders(root, "the folders images and masks") or {"train": root}
    found = {split: dict(_pairs(folder)) for split, folder in folders.items()}
    names = _read_names(root)
    values, digests, problems = _read_masks(
        pair for pairs in found.values() for pair in pairs.items() if None not in pair
    )
    if names is None:
        largest = max((int(of_mask.max(initial=0)) for of_mask in values.values()), default=0)
        names = tuple(f"class_{i}" for i in range(largest + 1))
    problems |= _unknown_classes(values, names)
    by_split, skipped = {}, {}
    for split, pairs in found.items():
        problem_of = {image: _problem(image, mask, problems) for image, mask in pairs.items()}
        by_split[split] = [image for image, problem in problem_of.items() if not problem]
        skipped |= {str(image): problem for image, problem in problem_of.items() if problem}
        if not by_split[split]:
            _refuse(folders[split], skipped)
    fractions = {"test": test_fraction, "validation": validation_fraction}
    missing = {name: part for name, part in fractions.items() if name not in by_split}
    held = hold_out(by_split["train"], missing, digests)
    masks = {image: mask for pairs in found.values() for image, mask in pairs.items()}
    splits = {name: [(str(image), str(masks[image])) for image in images] for name, images in (by_split | held).items()}
    return MaskFolder(names, splits, skipped, find_copies(by_split, digests))


def _pairs(folder):
    """Yields (path of an image, path of its mask or `None`), in the order of their names."""
    if not ((folder / "images").is_dir() and (folder / "masks").is_dir()):
        raise InputError(f"{folder} has no folders images and masks. {_LAYOUT}")
    for path in find_images(folder / "images", READABLE):
        mask = folder / "masks" / path.relative_to(folder / "images").with_suffix(".png")
        yield path, mask if mask.is_file() else None


def _read_names(root):
    path = root / "classes.txt"
    if not path.is_file():
        return None
    try:
        names = tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text in UTF-8: {error}") from None
    if len(names) > MOST_CLASSES or len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise InputError(f"{path} must have a name a line, at most {MOST_CLASSES}, none of them empty or twice.")
    return names


def _read_masks(pairs):
    """{image: classes in its mask} and {image: its digest} of those that can be read; {image: why not}."""
    pairs = list(pairs)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        read = dict(zip((image for image, _ in pairs), pool.map(_read, pairs), strict=True))
    problems = {image: found for image, found in read.items() if isinstance(found, str)}
    readable = {image: found for image, found in read.items() if image not in problems}
    values = {image: classes for image, (classes, _) in readable.items()}
    return values, {image: digest for image, (_, digest) in readable.items()}, problems


def _read(pair):
    """The classes in a mask and a digest of its image, or what is wrong with one of them."""
    image_path, mask_path = pair
    digest, problem = examine(image_path)
    if problem:
        return problem
    try:
        mask = read_values(mask_path.read_bytes())
        with PIL.Image.open(image_path) as image:
            width, height = image.size
            if image.getexif().get(_ORIENTATION) in _TURNED:
                width, height = height, width
    except (OSError, ValueError) as error:
        return f"its mask cannot be read: {error}"
    if mask.shape != (height, width):
        return f"has {width} x {height} pixels, its mask {mask.shape[1]} x {mask.shape[0]}"
    classes = np.unique(mask)
    return classes[classes != VOID], digest


def _unknown_classes(values, names):
    """{image: what its mask has beyond the classes}"""
    largest = {image: int(classes.max(initial=0)) for image, classes in values.items()}
    return {
        image: f"its mask has the value {value}, and there are {len(names)} classes, from 0; void is {VOID}"
        for image, value in largest.items()
        if value >= len(names)
    }


def _problem(image, mask, problems):
    return f"has no mask {image.stem}.png" if mask is None else problems.get(image)


def _refuse(folder, skipped):
    lines = "".join(f"\n  {path}: {problem}" for path, problem in skipped.items())
    raise InputError(f"{folder} has no image with a mask that can be used. {_LAYOUT}" + (lines and f" Skipped:{lines}"))
