"""Replaces training images that were deleted or damaged after the run began."""

import pathlib

import tensorflow as tf

from training.data.contents import file_problem
from training.errors import InputError


class FailureLimit:
    """Replaces the index of an image file that is gone or has changed by the index of the next intact file.

    Each such file is printed once.

    Args:
        paths: Paths of the files.
        items: `training.data.contents.Item` of each file, when the run began.
        most: Maximum number of such files, `data.max_failures`.
    """

    def __init__(self, paths, items, most):
        self._files = list(zip(map(pathlib.Path, paths), items, strict=True))
        self._most = most
        self._failed: set[int] = set()

    def __call__(self, index):
        """The index of an intact file. Both indices are int64 scalars."""
        intact = tf.numpy_function(self._intact, [index], tf.int64, stateful=False)
        return tf.ensure_shape(intact, [])

    def _intact(self, index):
        for other in range(index, index + len(self._files)):
            other %= len(self._files)
            path, item = self._files[other]
            problem = file_problem(path, item)
            if problem is None:
                return other
            self._count(other, path, problem)
        raise InputError("No training image can be read any more.")

    def _count(self, index, path, problem):
        if index not in self._failed:
            self._failed.add(index)
            print(f"\nSkipped {path}: {problem} (failure {len(self._failed)} of at most {self._most})")
        if len(self._failed) > self._most:
            raise InputError(f"More than data.max_failures={self._most} training images cannot be read any more.")
