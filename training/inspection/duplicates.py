"""Test images that are among the training images, or nearly: the same file, the same pixels, or the same picture.

A picture is known again by a perceptual hash, though it was resized, compressed anew, brightened, cropped a little or
mirrored: by which of the lowest frequencies of its brightness are above their median (as in Zauner, "Implementation and
Benchmarking of Perceptual Image Hash Functions", 2010). What has a similar hash must have similar pixels, too.
N training images, M others, B of a batch. Of each image 33 bytes are kept.
"""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_vit.decoding import decode_upright, luma
from training.data.subsets import select
from training.inspection.hash_index import HashIndex, distances

DISTANCE = 11  # Of 63 bits that may differ. Pictures of different things differ in 31 on average.
CORRELATION = 0.9
KINDS = ("same file", "same pixels", "alike", "mirrored")
_SIDE = 32  # Pixels of the small picture.
_LOWEST = 8  # Frequencies in each direction, of which the lowest of all, the mean, is left out.
_BATCH = 256
_FLAT = 2.0  # Levels of gray: what varies less has no structure that could be known again.


@dataclasses.dataclass(frozen=True)
class Duplicate:
    """An image of another split, a training image that it is like, and how: `kind`, one of `KINDS`.

    `distance` in bits between the hashes; `correlation` of their small pictures, 1 if they are the same.
    """

    index: int
    train_index: int
    kind: str
    distance: int
    correlation: float


@dataclasses.dataclass(frozen=True)
class Prints:
    """What is kept of images: 64-bit fingerprints of their files and of their pixels, hashes, and those of their
    mirror images; whether they have any structure. All of shape (N,)."""

    files: np.ndarray
    pixels: np.ndarray
    hashes: np.ndarray
    mirrored: np.ndarray
    has_structure: np.ndarray


class DuplicateFinder:
    """Finds images that are, or nearly are, among the training images.

    Args:
        train: Their source, of `training.data.sources`.
        distance: Bits in which the hashes of the same picture may differ, from 0 to 11.
        correlation: The least that their brightness must have, of pictures of 32 x 32 pixels.
    """

    def __init__(self, train, distance=DISTANCE, correlation=CORRELATION):
        self._train, self._distance, self._correlation = train, distance, correlation
        self._known = fingerprints(train)
        self._index = HashIndex(self._known.hashes)

    def find(self, other):
        """The images of a source that are among the training images, in their order: a list of `Duplicate`.

        Of an image that is like several training images, the most alike is named.
        """
        prints = fingerprints(other)
        found = _same(self._known.files, prints.files, "same file")
        found = _same(self._known.pixels, prints.pixels, "same pixels") | found
        left = np.setdiff1d(np.flatnonzero(prints.has_structure), list(found)).astype(int)
        pairs = [self._near("alike", prints.hashes, left), self._near("mirrored", prints.mirrored, left)]
        similar = self._similar(other, np.concatenate(pairs))
        return sorted([*found.values(), *similar], key=lambda duplicate: duplicate.index)

    def _near(self, kind, hashes, left):
        """int64 (pairs, 4): other image, training image, kind and distance of similar hashes."""
        other, known = self._index.near(hashes[left], self._distance).T
        other, known = (part[self._known.has_structure[known]] for part in (left[other], known))
        apart = distances(hashes[other], self._known.hashes[known])
        return np.stack([other, known, np.full(len(other), KINDS.index(kind)), apart], axis=1)

    def _similar(self, other, pairs):
        """Yields a `Duplicate` for each other image that is really like one of those that its hash is similar to."""
        if not len(pairs):
            return
        known, train_rows = _small_pictures(self._train, pairs[:, 1])
        others, other_rows = _small_pictures(other, pairs[:, 0])
        is_mirrored = pairs[:, 2] == KINDS.index("mirrored")
        parts = np.array_split(np.arange(len(pairs)), -(-len(pairs) // _BATCH))
        correlations = np.concatenate(
            [_correlations(known[train_rows[part]], others[other_rows[part]], is_mirrored[part]) for part in parts]
        )
        best = np.lexsort((-correlations, pairs[:, 0]))
        _, first = np.unique(pairs[best, 0], return_index=True)
        for row in best[first].tolist():
            index, train_index, kind, distance = pairs[row].tolist()
            if correlations[row] >= self._correlation:
                yield Duplicate(index, train_index, KINDS[kind], distance, float(correlations[row]))


def _small_pictures(source, indices):
    """The small pictures of some images, uint8 (images, 32, 32), and which of them belongs to each index."""
    chosen, rows = np.unique(indices, return_inverse=True)
    examples = select(source, chosen).in_order()
    small = examples.map(lambda example: tf.cast(tf.round(_look(example["image"])[2]), tf.uint8), tf.data.AUTOTUNE)
    return np.concatenate(list(small.batch(_BATCH).as_numpy_iterator())), rows


def _correlations(first, second, is_mirrored):
    """Pearson's correlations of pictures (B, 32, 32), of which some of the second are to be mirrored."""
    second = np.where(is_mirrored[:, None, None], second[:, :, ::-1], second)
    first, second = (part.reshape(len(part), -1).astype("float32") for part in (first, second))
    first, second = (part - part.mean(axis=1, keepdims=True) for part in (first, second))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / np.maximum(lengths, 1e-6)


def fingerprints(source):
    """`Prints` of all images of a source."""
    examples = source.in_order().map(lambda example: _look(example["image"]), tf.data.AUTOTUNE)
    parts = []
    for files, pixels, gray in examples.batch(_BATCH).prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
        hashes, mirrored = perceptual_hashes(gray)
        parts.append((files, pixels, hashes, mirrored, gray.std(axis=(1, 2)) >= _FLAT))
    return Prints(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)  # Traced once, which takes a second.
def _look(image_bytes):
    """Fingerprints of the file and of the pixels, int64, and the brightness as a small picture, (32, 32)."""
    image = decode_upright(image_bytes, 3)
    contents = tf.stack([image_bytes, tf.io.serialize_tensor(image)])
    file, pixels = tf.unstack(tf.bitcast(tf.fingerprint(contents), tf.int64))
    return file, pixels, tf.image.resize(luma(image), (_SIDE, _SIDE), antialias=True)[..., 0]


def perceptual_hashes(gray):
    """Hashes of small pictures and of their mirror images, uint64 (B,) each.

    Args:
        gray: (B, 32, 32), of any brightness.
    """
    cosines = _cosines()
    lowest = cosines @ gray.astype("float64") @ cosines.T  # (B, 8, 8): rows are vertical frequencies.
    signs = (-1.0) ** np.arange(_LOWEST)  # A mirror image has the opposite of every other horizontal frequency.
    return _bits(lowest), _bits(lowest * signs)


def _bits(lowest):
    frequencies = lowest.reshape(len(lowest), -1)[:, 1:]
    bits = frequencies > np.median(frequencies, axis=1, keepdims=True)
    return np.packbits(np.pad(bits, ((0, 0), (1, 0))), axis=1).view(">u8")[:, 0].astype("uint64")


@functools.cache
def _cosines():
    """The lowest rows of the discrete cosine transform (type II), (8, 32)."""
    frequencies, places = np.arange(_LOWEST)[:, None], np.arange(_SIDE)
    return np.cos(np.pi * frequencies * (2 * places + 1) / (2 * _SIDE))


def _same(known, others, kind):
    """{index: `Duplicate`} of each fingerprint that is known; of several, the first training image."""
    values, first = np.unique(known, return_index=True)
    places = np.minimum(np.searchsorted(values, others), len(values) - 1)
    indices = np.flatnonzero(values[places] == others).tolist()
    return {index: Duplicate(index, int(first[places[index]]), kind, 0, 1.0) for index in indices}
