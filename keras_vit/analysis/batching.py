"""Splits arrays of images into batches."""

import collections.abc
import typing

from numpy.typing import ArrayLike

from keras_vit.checks import check_positive_integer

Images: typing.TypeAlias = ArrayLike | collections.abc.Iterable[ArrayLike]
"""An array of images, or an iterable of batches."""


def batches(images, batch_size):
    """Yields the images of an array in batches of at most `batch_size`.

    If `images` is not an array, it must be an iterable of batches, such as a `tf.data.Dataset`. These batches are
    yielded unchanged.

    Raises:
        ValueError: If there is no batch.
    """
    check_positive_integer("batch_size", batch_size)
    chunks = images
    if hasattr(images, "shape"):
        chunks = (images[start : start + batch_size] for start in range(0, len(images), batch_size))
    batch = None
    for batch in chunks:
        yield batch
    if batch is None:
        raise ValueError("There is no image. Give at least one.")
