"""Finds test images that duplicate a training image: the same file, the same pixels, or the same picture.

A perceptual hash recognises a picture that was resized, recompressed, brightened, slightly cropped or mirrored. It has
one bit for each of the lowest frequencies of the brightness. The bit is set if the frequency's coefficient is above the
median (as in Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions", 2010). Duplicates must also
have similar pixels. For each image, 33 bytes are stored in memory. B is the batch size.
"""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding import decode_upright, luma
from keras_vit.inference import predict
from training.data.subsets import select
from training.inspection.hash_index import HashIndex, distances

DISTANCE = 11  # Maximum number of different bits, out of 63. Unrelated pictures differ in 31 bits on average.
CORRELATION = 0.9
KINDS = ("same file", "same pixels", "alike", "mirrored")
_SIDE = 32  # Side of a small picture in pixels.
_LOWEST = 8  # Number of frequencies in each direction. The lowest frequency, which is the mean, is left out.
_BATCH = 256
_FLAT = 2.0  # Gray levels. An image with a smaller standard deviation has no structure to recognise.


@dataclasses.dataclass(frozen=True)
class Duplicate:
    """An image, and the training image that it duplicates.

    `kind` is one of `KINDS`. `distance` is the number of bits in which the two images' hashes differ. `correlation`
    is the correlation of their pixels at 32 x 32.
    """

    index: int
    train_index: int
    kind: str
    distance: int
    correlation: float


@dataclasses.dataclass(frozen=True)
class Fingerprints:
    """The stored properties of N images: 64-bit fingerprints of their files and of their pixels, hashes of the images
    and of their mirror images, and whether the images have any structure. Each array is (N,)."""

    files: np.ndarray
    pixels: np.ndarray
    hashes: np.ndarray
    mirrored: np.ndarray
    has_structure: np.ndarray


class DuplicateFinder:
    """Finds images that duplicate a training image.

    Args:
        train: Source of the training images, as in `training.data.sources`.
        distance: Maximum number of different bits between the hashes of duplicates, from 0 to 11.
        correlation: Minimum correlation between the brightness of duplicates at 32 x 32 pixels.
    """

    def __init__(self, train, distance=DISTANCE, correlation=CORRELATION):
        self._train, self._distance, self._correlation = train, distance, correlation
        self._known = fingerprints(train)
        self._index = HashIndex(self._known.hashes)

    def find(self, other):
        """Returns a `Duplicate` for each image of `other` that duplicates a training image, in the order of the images.

        If an image duplicates several training images, the most similar one is returned.
        """
        prints = fingerprints(other)
        exact = _exact_duplicates(self._known.files, prints.files, "same file")
        exact = _exact_duplicates(self._known.pixels, prints.pixels, "same pixels") | exact
        rest = np.setdiff1d(np.flatnonzero(prints.has_structure), list(exact)).astype(int)
        pairs = [self._near_pairs("alike", prints.hashes, rest), self._near_pairs("mirrored", prints.mirrored, rest)]
        similar = self._similar(other, np.concatenate(pairs))
        return sorted([*exact.values(), *similar], key=lambda duplicate: duplicate.index)

    def _near_pairs(self, kind, hashes, indices):
        """int64 (pairs, 4): index of the other image, of the training image and of the kind; distance of the hashes."""
        other, known = self._index.find_pairs(hashes[indices], self._distance).T
        other, known = (part[self._known.has_structure[known]] for part in (indices[other], known))
        bits = distances(hashes[other], self._known.hashes[known])
        return np.stack([other, known, np.full(len(other), KINDS.index(kind)), bits], axis=1)

    def _similar(self, other, pairs):
        """Yields a `Duplicate` for each image of `other` in `pairs` whose pixels are similar to a training image's."""
        if not len(pairs):
            return
        known, train_rows = _small_pictures(self._train, pairs[:, 1])
        others, other_rows = _small_pictures(other, pairs[:, 0])
        is_mirrored = pairs[:, 2] == KINDS.index("mirrored")
        chunks = np.array_split(np.arange(len(pairs)), -(-len(pairs) // _BATCH))
        correlations = np.concatenate(
            [_correlations(known[train_rows[rows]], others[other_rows[rows]], is_mirrored[rows]) for rows in chunks]
        )
        best = np.lexsort((-correlations, pairs[:, 0]))
        _, first = np.unique(pairs[best, 0], return_index=True)
        for row in best[first].tolist():
            index, train_index, kind, distance = pairs[row].tolist()
            if correlations[row] >= self._correlation:
                yield Duplicate(index, train_index, KINDS[kind], distance, float(correlations[row]))


def _small_pictures(source, indices):
    """The small pictures of the images at `indices`, uint8 (pictures, 32, 32), and each index's row in this array."""
    chosen, rows = np.unique(indices, return_inverse=True)
    examples = select(source, chosen).in_order()
    small = examples.map(lambda example: tf.cast(tf.round(_summarise(example["image"])[2]), tf.uint8), tf.data.AUTOTUNE)
    return np.concatenate(list(small.batch(_BATCH).as_numpy_iterator())), rows


def _correlations(first, second, is_mirrored):
    """Pearson's correlations (B,) of pairs of pictures (B, 32, 32). If `is_mirrored` (B,), the second is mirrored."""
    second = np.where(is_mirrored[:, None, None], second[:, :, ::-1], second)
    first, second = (part.reshape(len(part), -1).astype("float32") for part in (first, second))
    first, second = (part - part.mean(axis=1, keepdims=True) for part in (first, second))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / np.maximum(lengths, 1e-6)


def fingerprints(source):
    """`Fingerprints` of all images of a source."""
    results = predict(_summaries, source.in_order().as_numpy_iterator(), _BATCH)
    columns = zip(*(outputs.values() for _, outputs in results if outputs), strict=True)
    return Fingerprints(*map(np.stack, columns))


def _summaries(contents):
    """The `Fingerprints` of a batch of encoded images, as a function for `keras_vit.inference.predict`."""
    files, pixels, gray = (part.numpy() for part in _summarise_batch(contents))
    hashes, mirrored = perceptual_hashes(gray)
    arrays = (files, pixels, hashes, mirrored, gray.std(axis=(1, 2)) >= _FLAT)
    names = (field.name for field in dataclasses.fields(Fingerprints))
    return dict(zip(names, arrays, strict=True)) | {"valid": np.ones(len(gray), bool)}


# Traced once, because tracing takes a second.
@tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
def _summarise_batch(contents):
    return tf.map_fn(_summarise, contents, fn_output_signature=(tf.int64, tf.int64, tf.float32))


@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
def _summarise(image_bytes):
    """The fingerprints of the file and of the pixels, int64, and a small picture (32, 32) of the brightness."""
    image = decode_upright(image_bytes, 3)
    contents = tf.stack([image_bytes, tf.io.serialize_tensor(image)])
    file, pixels = tf.unstack(tf.bitcast(tf.fingerprint(contents), tf.int64))
    return file, pixels, tf.image.resize(luma(image), (_SIDE, _SIDE), antialias=True)[..., 0]


def perceptual_hashes(gray):
    """Hashes of small pictures and of their mirror images, uint64 (B,) each.

    Args:
        gray: Brightness, (B, 32, 32), on any scale.
    """
    cosines = _cosines()
    lowest = cosines @ gray.astype("float64") @ cosines.T  # (B, 8, 8): rows are vertical frequencies.
    signs = (-1.0) ** np.arange(_LOWEST)  # Mirroring negates every other horizontal frequency.
    return _bits(lowest), _bits(lowest * signs)


def _bits(lowest):
    frequencies = lowest.reshape(len(lowest), -1)[:, 1:]
    bits = frequencies > np.median(frequencies, axis=1, keepdims=True)
    return np.packbits(np.pad(bits, ((0, 0), (1, 0))), axis=1).view(">u8")[:, 0].astype("uint64")


@functools.cache
def _cosines():
    """The lowest rows of the discrete cosine transform (type II), (8, 32)."""
    frequencies, positions = np.arange(_LOWEST)[:, None], np.arange(_SIDE)
    return np.cos(np.pi * frequencies * (2 * positions + 1) / (2 * _SIDE))


def _exact_duplicates(known, others, kind):
    """{index: `Duplicate`} of the images whose fingerprint is in `known`.

    Each `Duplicate` names the first training image with the same fingerprint.
    """
    values, first = np.unique(known, return_index=True)
    positions = np.minimum(np.searchsorted(values, others), len(values) - 1)
    indices = np.flatnonzero(values[positions] == others).tolist()
    return {index: Duplicate(index, int(first[positions[index]]), kind, 0, 1.0) for index in indices}
