"""Reads training images, some of which may be deleted or damaged after the run began."""

import hashlib
import pathlib

import tensorflow as tf

from training.errors import InputError
from training.files import read_file


class IntactFiles:
    """Reads image files. A file that is gone or has changed is replaced by the next intact one, and printed once.

    Args:
        paths: Paths of the files.
        items: `training.data.contents.Item` of each file, when the run began.
        max_failures: Maximum number of such files.
    """

    def __init__(self, paths, items, max_failures):
        self._files = list(zip(map(pathlib.Path, paths), items, strict=True))
        self._max_failures = max_failures
        self._failed: set[int] = set()

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
                content = read_file(path)
            except OSError as error:
                problem = error.strerror or str(error)
            if hashlib.sha256(content).hexdigest() == item.digest:
                return content, other % len(self._files)
            self._failed.add(other % len(self._files))
            if len(self._failed) > num_failed:
                print(f"\nReplaced {path}: {problem} (failure {len(self._failed)} of at most {self._max_failures})")
            if len(self._failed) > self._max_failures:
                raise InputError(f"More than data.max_failures={self._max_failures} training images cannot be read.")
        raise InputError("No training image can be read any more.")
