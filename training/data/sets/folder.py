"""A directory with a folder of photographs for each class.

    photographs/cat/1.jpg
    photographs/cat/2.png
    photographs/dog/a.jpeg

The directory may instead have the folders photographs/train, photographs/test and optionally photographs/validation.
Each of them contains the folders of the classes.
"""

import concurrent.futures
import functools
import hashlib
import os
import pathlib
import re

import tensorflow as tf

from keras_vit.data import folder as image_folders
from keras_vit.data.decoding import decode_upright
from training.data.images import decoded
from training.data.sets.splitting import FolderSplits, find_copies, hold_out, list_items, together
from training.errors import InputError, shortened_names
from training.files import check_name

SPLIT_NAMES = {"train": "train", "test": "test"} | dict.fromkeys(("val", "valid", "validation"), "validation")
_LAYOUT = "Expected one folder for each class with its images inside: cat/1.jpg, cat/2.png, dog/a.jpeg ..."


def read_folder(directory, test_fraction, validation_fraction):
    """Finds the images of a directory, and splits them unless they are already split.

    In each class, `test_fraction` of the images are held out for the test, and `validation_fraction` of the rest for
    validation. At least one image remains for training. Copies of an image are in the same split, also if they are in
    several classes. The split depends only on the names of the images and of their folders, and on which images are
    copies. As long as no image is added or removed, the split is therefore the same on every machine.

    Args:
        directory: Path of the directory.
        test_fraction: Fraction of the images, in (0, 1).
        validation_fraction: Fraction of the remaining images, in [0, 1).

    Returns:
        A `FolderSplits`.

    Raises:
        InputError: If there are not enough images. The message describes what was found and what is expected.
    """
    root, folders = find_splits(directory, "photographs", "class folders only", _LAYOUT)
    by_split, skipped, digests = {}, {}, {}
    for split, folder in folders.items():
        by_split[split], skipped_here, digests_here = _read_classes(folder)
        skipped, digests = skipped | skipped_here, digests | digests_here
    classes = _check_classes(folders["train"], by_split["train"], skipped)
    notes = _notes(folders["train"], by_split["train"], digests)
    for split, images in by_split.items():
        unknown = sorted(set(images) - set(classes))
        if unknown:
            raise InputError(
                f"{folders[split]} has classes that are missing in {folders['train']}: {', '.join(unknown)}"
            )
    fractions = {"test": test_fraction, "validation": validation_fraction}
    missing = {split: fraction for split, fraction in fractions.items() if split not in by_split}
    held_out = {name: hold_out(paths, missing, digests) for name, paths in by_split["train"].items()}
    new_splits = {
        split: _labelled({name: held_out[name][split] for name in classes}, classes) for split in (*missing, "train")
    }
    other_splits = {split: _labelled(images, classes) for split, images in by_split.items() if split != "train"}
    splits = together(new_splits, {str(path): digest for path, digest in digests.items()}) | other_splits
    files = {split: [path for paths in images.values() for path in paths] for split, images in by_split.items()}
    labels = {path: name for images in by_split.values() for name, paths in images.items() for path in paths}
    items = list_items(root, digests, labels)
    overlap = find_copies(files, digests)
    return FolderSplits(classes, splits, items, root, skipped, overlap, notes, has_split_folders=len(folders) > 1)


def find_splits(directory, contents, unsplit_layout, layout):
    """Returns the path of `data.directory`, and {split: folder}. Without split folders, "train" is the whole directory.

    `contents`, `unsplit_layout` and `layout` are texts for error messages. They describe the files that are expected.
    """
    if directory is None:
        raise InputError(f"The folder data set needs data.directory=<path of your {contents}>. {layout}")
    root = pathlib.Path(directory).expanduser()
    if not root.is_dir():
        raise InputError(f"data.directory={directory} is not a directory. {layout}")
    folders = _folders(root)
    known = [folder for folder in folders if folder.name.lower() in SPLIT_NAMES]
    splits = {SPLIT_NAMES[folder.name.lower()]: folder for folder in known}
    if "train" not in splits or (len(splits) == 1 and len(folders) > len(known)):  # In the second case, it is a class.
        return root, {"train": root}
    if len(folders) > len(splits) or len(splits) == 1:
        raise InputError(
            f"{root} contains a folder train, so its folders must be train, test and optionally validation, one of "
            f"each. Its folders: {', '.join(folder.name for folder in folders)}. If your data are not split, {root} "
            f"must contain {unsplit_layout}."
        )
    return root, splits


def splits_in_names(root, files):
    """{file: split} if the names of files define at least two splits, or else an empty dictionary.

    A name defines a split if it contains one of the words `SPLIT_NAMES`, such as `train2017/part-0.tar`.
    """
    found = {}
    for file in files:
        words = re.split("[^a-z]+", file.relative_to(root).as_posix().lower())
        found[file] = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    if len(set().union(*found.values())) < 2:
        return {}
    unclear = [str(file) for file, splits in found.items() if len(splits) != 1]
    if unclear:
        raise InputError(
            f"The names of some files in {root} define splits. Then each name must contain one of the words "
            f"{', '.join(SPLIT_NAMES)}. Received: {shortened_names(unclear)}"
        )
    return {file: splits.pop() for file, splits in found.items()}


def _read_classes(root):
    """Returns {class: sorted paths of decodable images}, {skipped path: reason} and {path: (size, digest)}."""
    paths_by_class = {folder.name: find_images(folder) for folder in _folders(root)}
    paths = [path for paths in paths_by_class.values() for path in paths]
    examined = dict(zip(paths, map_in_threads(examine, paths), strict=True))
    digests = {path: digest for path, (digest, _) in examined.items() if digest}
    images = {name: [path for path in paths if path in digests] for name, paths in paths_by_class.items()}
    skipped = {str(path): problem for path, (_, problem) in examined.items() if problem}
    skipped |= {
        str(root / name): "no readable images, so it is not a class" for name, paths in images.items() if not paths
    }
    return {name: paths for name, paths in images.items() if paths}, skipped, digests


def _check_classes(root, images, skipped):
    classes = tuple(sorted(images))
    if len(classes) >= 2:
        return classes
    unreadable = "".join(f"\n  {path}: {problem}" for path, problem in skipped.items())
    expected = _LAYOUT + (f" Skipped:{unreadable}" if skipped else "")
    if classes:
        names = ", ".join(folder.name for folder in _folders(root / classes[0]))
        hint = f" If the classes are {names}, set data.directory={root / classes[0]}." if names else ""
        raise InputError(
            f"{root} has images of only one class, {classes[0]!r}. A classifier needs two.{hint} {expected}"
        )
    loose = sum(map(image_folders.is_image, root.iterdir()))
    if loose:
        raise InputError(f"{root} has {loose} images and no class folders. {expected}")
    folders = len(_folders(root))
    raise InputError(f"{root} has no readable images ({folders} folders were searched). {expected}")


def _notes(root, images, digests):
    """Sentences about classes whose images are copies of one file, or are all in subfolders."""
    copied = [name for name, paths in images.items() if len(paths) > 1 and len({digests[path] for path in paths}) == 1]
    nested = [name for name, paths in images.items() if all(path.parent != root / name for path in paths)]
    notes = []
    if copied:
        notes.append(
            f"All images of a class are copies of one file: {shortened_names(copied)}. Copies stay in the same split, "
            f"so the class is missing in the other splits."
        )
    if nested:
        notes.append(
            f"All images of a class are in subfolders: {shortened_names(nested)}. The class is the name of the folder "
            f"in {root}, not of the subfolder."
        )
    return tuple(notes)


def _labelled(images, classes):
    return [(str(path), classes.index(name)) for name in sorted(images) for path in images[name]]


def _folders(root):
    return _checked(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def find_images(folder):
    """`keras_vit.data.folder.find_images`, with a check that the names are UTF-8."""
    return _checked(image_folders.find_images(folder))


def _checked(paths):
    """Sorts paths, and checks that their names are UTF-8."""
    paths = sorted(paths)
    for path in paths:
        check_name(path)
    return paths


def map_in_threads(function, items):
    """Returns [function(item) for each item], computed in several threads.

    The first item is processed before the threads start. During its call, TensorFlow traces and optimises the functions
    that read images. Otherwise, each thread would do this, which takes seconds.
    """
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return [*map(function, items[:1]), *pool.map(function, items[1:])]


def examine(path, read=image_folders.read_file):
    """Reads an image. Returns ((size, digest), `None`), or (`None`, reason) if it cannot be decoded.

    Args:
        path: Path of the image.
        read: Function of the path that returns the contents, or raises an OSError.
    """
    if path.suffix.lower() in image_folders.OTHER_IMAGES:
        return None, f"{path.suffix} files cannot be decoded; convert the file to JPEG or PNG"
    try:
        content = read(path)
        decoded(content, _decoder())
    except OSError as error:
        is_broken = path.is_symlink() and not path.exists()
        return None, f"a link to {os.readlink(path)}, which does not exist" if is_broken else error.strerror
    except ValueError as error:
        return None, str(error)
    return (len(content), hashlib.sha256(content).hexdigest()), None


@functools.cache
def _decoder():
    """A decoder that TensorFlow traces only once. This saves time for folders with many thousands of images."""
    signature = [tf.TensorSpec([], tf.string)]
    decoder = tf.function(lambda image_bytes: decode_upright(image_bytes, 3), signature, autograph=False)
    return decoder.get_concrete_function()
