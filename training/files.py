"""Files that the user names, and files that the programs write."""

import errno
import pathlib
import stat

from training.errors import InputError


def read_file(path):
    """The contents of a file. Raises an OSError for what is none: a folder, or a pipe or device that may never end."""
    path = pathlib.Path(path)
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "It is a pipe, a device or a socket, not a file", str(path))
    return path.read_bytes()


def write_text(path, text):
    """Writes a text file that is complete or as it was. Raises an InputError if it cannot be written."""
    from keras_vit.atomic_files import replacing  # Not above: predict needs TensorFlow only.

    try:
        with replacing(path) as unfinished:
            unfinished.write_bytes(text.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None


def check_name(name):
    """Refuses the name of a file or folder, or another argument, that is not UTF-8: it could not be written anywhere.

    Python stands for each byte that cannot be decoded by a surrogate, which cannot be encoded again.
    """
    try:
        str(name).encode()
    except UnicodeEncodeError:
        raise InputError(f"Names must be in UTF-8. Received: {str(name)!a}. Rename the file or folder.") from None
