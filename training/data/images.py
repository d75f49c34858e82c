"""Reads image files of users. Such files may be damaged, deleted, or crafted to exhaust the memory."""

import hashlib
import pathlib
import re

import tensorflow as tf

from keras_vit.data.decoding import check_decoding_cost
from keras_vit.data.folder import read_file
from training.errors import InputError

_MESSAGE_FRAME = r"^{{.*?}} |\n.*|\s*\[Op:.*\]$"
"""The text that TensorFlow adds before and after the reason for an error."""
_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"GI": ".gif", b"BM": ".bmp", b"RI": ".webp"}


def read_image(path, decode):
    """Reads an image file. Returns the contents of the file and the pixels of the image.

    Args:
        path: Path of the file.
        decode: Function of `keras_vit.data.decoding` that decodes the contents to pixels.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file cannot be decoded. The message contains the reason.
    """
    content = read_file(path)
    return content, decoded(content, decode)


def decoded(content, decode):
    """Decodes the contents of an image file. Raises a `ValueError`, with the reason, if this is not possible."""
    check_decoding_cost(content)
    try:
        return decode(content)
    # The EXIF data are read in a loop. If decoding fails during this loop, TensorFlow may raise a CancelledError.
    except (tf.errors.InvalidArgumentError, tf.errors.CancelledError) as error:
        raise ValueError(re.sub(_MESSAGE_FRAME, "", error.message)) from None


def image_suffix(content):
    """The suffix for an image file with these contents, such as ".jpg", or an empty string if the format is unknown."""
    return _SUFFIXES.get(content[:2], "")


class IntactFiles:
    """Reads image files. A file that is gone or has changed is replaced by the next intact one, and printed once.

    Args:
        paths: Paths of the files.
        items: `training.data.contents.Item` of each file, when the run began.
        max_failures: Maximum number of such files.
        read_content: Function that returns the contents of the file at a path, or raises an OSError.
    """

    def __init__(self, paths, items, max_failures, read_content=read_file):
        self._files = list(zip(map(pathlib.Path, paths), items, strict=True))
        self._max_failures, self._read_content = max_failures, read_content
        self._failed: set[pathlib.Path] = set()

    def read(self, index):
        """Returns (contents of the file, its index), a string and an int64 scalar, for an int64 scalar.

        Raises:
            InputError: If more than `max_failures` files are gone or have changed.
        """
        content, index = tf.numpy_function(self._read, [index], [tf.string, tf.int64], stateful=False)
        return tf.ensure_shape(content, []), tf.ensure_shape(index, [])

    def _read(self, index):
        for other in range(index, index + len(self._files)):
            path, item = self._files[other % len(self._files)]
            num_failed = len(self._failed)
            content, problem = b"", "the file has changed"
            try:
                content = self._read_content(path)
            except OSError as error:
                problem = error.strerror or str(error)
            if hashlib.sha256(content).hexdigest() == item.digest:
                return content, other % len(self._files)
            self._failed.add(path)
            if len(self._failed) > num_failed:
                print(f"\nReplaced {path}: {problem} (failure {len(self._failed)} of at most {self._max_failures})")
            if len(self._failed) > self._max_failures:
                raise InputError(f"More than data.max_failures={self._max_failures} training images cannot be read.")
        raise InputError("No training image can be read any more.")
