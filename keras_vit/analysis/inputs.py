"""The models and the images that the functions of this folder take."""

import collections.abc
import typing

from numpy.typing import ArrayLike

from keras_vit.architectures import read_architecture
from keras_vit.checks import check_positive_integer
from keras_vit.preprocessing import preprocessing_layer

Images: typing.TypeAlias = ArrayLike | collections.abc.Iterable[ArrayLike]
"""An array of images, or an iterable of batches."""


def model_config(model):
    """The config of a model of this package, such as a `ViTConfig`. The model may be nested in another."""
    return read_architecture(preprocessing_layer(model).architecture)


def merges_tokens(model):
    """Whether the blocks of a model of this package merge tokens. If they do, similar patches share a token."""
    return bool(getattr(model_config(model), "token_merging", 0))


def check_unmerged(num_merged):
    """Checks that `num_merged`, the number of tokens that each block of a model merges, is 0."""
    if num_merged:
        raise ValueError(
            f"Every patch must have its own token. Received: a model with token_merging={num_merged}. Build the model "
            f"with token_merging=0, load the same weights, and analyse that model."
        )


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
