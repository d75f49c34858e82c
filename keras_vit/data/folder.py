"""Finds the image files of a folder, and reads them."""

import errno
import os
import pathlib
import stat

READABLE = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp")
"""Suffixes of images that can be decoded"""
OTHER_IMAGES = (".heic", ".heif", ".avif", ".tif", ".tiff", ".jxl", ".raw", ".psd")
"""Suffixes of images that cannot be decoded. Files with other suffixes are no images."""


def find_images(folder):
    """The sorted paths of the images in a folder and its subfolders, also of linked ones. Each folder is read once."""
    # A link to a folder above would lead to the other classes.
    folder = pathlib.Path(folder)
    seen, links, paths = set(map(str, folder.resolve().parents)), [folder], []
    for link in links:  # The list grows during the loop. Folders are read before the links to them.
        for parent, folders, files in os.walk(link):
            if (target := os.path.realpath(parent)) in seen:
                folders.clear()
                continue
            seen.add(target)
            folders.sort()
            links += [path for name in folders if (path := pathlib.Path(parent, name)).is_symlink()]
            paths += [path for name in files if is_image(path := pathlib.Path(parent, name))]
    return sorted(paths)


def is_image(path):
    """Whether a file has the name of an image. It may be a link to a file that does not exist."""
    return path.suffix.lower() in READABLE + OTHER_IMAGES and not path.name.startswith(".") and not path.is_dir()


def read_file(path):
    """Reads the bytes of a file. Raises an OSError for a folder, and for a pipe or device, which may be endless."""
    path = pathlib.Path(path)
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "It is a pipe, a device or a socket, not a file", str(path))
    return path.read_bytes()
