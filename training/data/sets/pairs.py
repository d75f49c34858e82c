"""Pairs of an image and an annotation in another file, such as a mask: how they are examined and split."""

import hashlib

import PIL.Image

from training.data.sets.folder import examine, find_images, map_in_threads
from training.data.sets.splitting import FolderSplits, find_copies, hold_out, list_items
from training.errors import InputError

_TURNED = (5, 6, 7, 8)  # EXIF orientations that swap height and width.
_ORIENTATION = 0x0112  # Number of the EXIF tag for the orientation.
_MAX_LINES = 10  # Maximum number of skipped images that a message lists.


def find_pairs(folder, name, suffixes, layout):
    """The annotations of the images in a folder: {path of an image: path of the annotation as a string, or `None`}.

    Args:
        folder: The folder, which contains `images` and a folder of annotations with the same names.
        name: Name of the folder of annotations.
        suffixes: Suffixes of the annotations.
        layout: Description of the files that are expected, for the message.
    """
    if not ((folder / "images").is_dir() and (folder / name).is_dir()):
        raise InputError(f"{folder} has no folders images and {name}. {layout}")
    pairs = {}
    for image in find_images(folder / "images"):
        path = folder / name / image.relative_to(folder / "images")
        found = [str(file) for suffix in suffixes if (file := path.with_suffix(suffix)).is_file()]
        pairs[image] = found[0] if found else None
    return pairs


def examine_pairs(pairs_by_split, read, title, missing):
    """Reads images and their annotations, in several threads.

    Args:
        pairs_by_split: {split: {path of an image: annotation, or `None`}}
        read: Function of an annotation and of the (height, width) of the upright image. It returns what was found, and
            the bytes of the annotation. It raises an OSError or a ValueError if the annotation cannot be used.
        title: What an annotation is called, for messages.
        missing: Message for an image without annotation. `{}` is replaced by the stem of its name.

    Returns:
        {image: (what was found, (size, digest) of the image, digest of the annotation)} of the pairs that can be used;
        {image: problem} of images that cannot be read; and {image: problem} of annotations that cannot be used.
    """

    def read_pair(pair):
        image, annotation = pair
        digest, unreadable = examine(image)
        if unreadable or annotation is None:
            return unreadable, missing.format(image.stem), None
        try:
            found, content = read(annotation, _upright_size(image))
        except (OSError, ValueError) as error:
            return None, f"its {title} cannot be used: {error}", None
        return None, None, (found, digest, hashlib.sha256(content).hexdigest())

    pairs = {image: annotation for pairs in pairs_by_split.values() for image, annotation in pairs.items()}
    results = dict(zip(pairs, map_in_threads(read_pair, list(pairs.items())), strict=True))
    usable = {image: found for image, (_, _, found) in results.items() if found}
    unreadable = {image: problem for image, (problem, _, _) in results.items() if problem}
    problems = {image: problem for image, (_, problem, _) in results.items() if problem and image not in unreadable}
    return usable, unreadable, problems


def _upright_size(path):
    with PIL.Image.open(path) as image:
        width, height = image.size
        return (width, height) if image.getexif().get(_ORIENTATION) in _TURNED else (height, width)


def check_size(size, found):
    """Raises a ValueError unless an annotation has the size of the image. Both are (height, width)."""
    if tuple(size) != tuple(found):
        raise ValueError(f"it has {found[1]} x {found[0]} pixels, but the image has {size[1]} x {size[0]}")


def split_pairs(root, pairs_by_split, usable, problems, fractions, expected, **properties):
    """Splits the pairs that can be used with `hold_out`, unless they are already split.

    Args:
        root: Path of the directory.
        pairs_by_split: {split: {path of an image: annotation, or `None`}}
        usable: Result of `examine_pairs`.
        problems: {image: problem} of the images that are skipped.
        fractions: Fractions of the pairs for "test", in (0, 1), and of the rest for "validation", in [0, 1).
        expected: Description of an image that can be used and of the expected files, for the message.
        properties: `class_names` and other fields of the result.

    Returns:
        A `FolderSplits`. The label of an image is its annotation.

    Raises:
        InputError: If a split has no pair that can be used. The message lists problems.
    """
    by_split = {split: [image for image in pairs if image not in problems] for split, pairs in pairs_by_split.items()}
    for split, images in by_split.items():
        if not images:
            lines = [f"\n  {image}: {problems[image]}" for image in pairs_by_split[split]]
            more = f"\n  … ({len(lines):,} in all)" if len(lines) > _MAX_LINES else ""
            skipped = f" Skipped:{''.join(lines[:_MAX_LINES])}{more}" if lines else ""
            raise InputError(f"The {split} split of {root} has no {expected}{skipped}")
    digests = {image: digest for image, (_, digest, _) in usable.items()}
    missing = {
        split: part for split, part in zip(("test", "validation"), fractions, strict=True) if split not in by_split
    }
    images_by_split = by_split | hold_out(by_split["train"], missing, digests)
    annotations = {image: annotation for pairs in pairs_by_split.values() for image, annotation in pairs.items()}
    splits = {
        split: [(str(image), annotations[image]) for image in images] for split, images in images_by_split.items()
    }
    labels = {image: usable[image][2] for images in by_split.values() for image in images}
    return FolderSplits(
        splits=splits,
        items=list_items(root, digests, labels),
        root=root,
        skipped={str(image): problem for image, problem in problems.items()},
        overlap=find_copies(by_split, digests),
        has_split_folders=len(by_split) > 1,
        **properties,
    )
