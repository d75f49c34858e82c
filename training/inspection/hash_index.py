"""Finds pairs of hashes that differ in few bits, without comparing all pairs. There are N known and M other hashes."""

import itertools

import numpy as np

MAX_PAIRS = 20_000_000
"""Approximate maximum number of pairs that are compared at once."""
_BANDS, _BAND_BITS = 4, 16


class HashIndex:
    """An index of N known hashes. For each of M new hashes, it finds all similar known hashes.

    Multi-index hashing (Norouzi, Punjani and Fleet, arXiv 1307.2982): The 64 bits of a hash are split into four bands
    of 16 bits. If two hashes differ in at most d bits, at least one band differs in at most d // 4 bits. Only pairs
    with such a band are compared.

    Args:
        hashes: Known hashes, uint64 (N,).
    """

    def __init__(self, hashes):
        self._hashes = hashes
        self._orders, self._starts = [], []
        for band in _bands(hashes):
            self._orders.append(np.argsort(band, kind="stable"))
            counts = np.bincount(band, minlength=2**_BAND_BITS)
            self._starts.append(np.concatenate([[0], np.cumsum(counts)]))

    def find_pairs(self, hashes, distance):
        """Finds the pairs of hashes that differ in few bits.

        Args:
            hashes: Other hashes, uint64 (M,).
            distance: Maximum number of different bits, from 0 to 11. A distance of 11 needs 548 lookups per hash.

        Returns:
            int64 (pairs, 2): (index of the other hash, index of the known hash), in ascending order.
        """
        pairs = [np.empty((0, 2), np.int64)]
        for known, others in self._candidates(hashes, distance // _BANDS):
            is_near = distances(self._hashes[known], hashes[others]) <= distance
            pairs.append(np.stack([others[is_near], known[is_near]], axis=1))
        return np.unique(np.concatenate(pairs), axis=0)

    def _candidates(self, hashes, flips):
        """Yields (known indices, other indices) of the pairs with a band that differs in at most `flips` bits."""
        for band, order, starts in zip(_bands(hashes), self._orders, self._starts, strict=True):
            for mask in _masks(flips):
                first = starts[band ^ mask]
                counts = starts[(band ^ mask) + 1] - first
                for rows in _chunks(counts):
                    others = np.repeat(np.arange(len(hashes))[rows], counts[rows])
                    ends = np.cumsum(counts[rows])
                    within = np.arange(len(others)) - np.repeat(ends - counts[rows], counts[rows])
                    yield order[np.repeat(first[rows], counts[rows]) + within], others


def distances(first, second):
    """The number of bits in which two hashes differ, elementwise."""
    return sum(_ONES[band] for band in _bands(first ^ second))


def _bands(hashes):
    """The four bands of each hash, as integers below 2**16."""
    lowest = np.uint64(2**_BAND_BITS - 1)
    return [((hashes >> np.uint64(_BAND_BITS * band)) & lowest).astype(np.int64) for band in range(_BANDS)]


def _masks(flips):
    """Yields all 16-bit numbers with at most `flips` bits set."""
    for count in range(flips + 1):
        for bits in itertools.combinations(range(_BAND_BITS), count):
            yield sum(1 << bit for bit in bits)


def _chunks(counts):
    """Splits the rows into slices that have about `MAX_PAIRS` pairs each. `counts` are the numbers of pairs per row."""
    chunk = np.cumsum(counts) // MAX_PAIRS
    borders = np.flatnonzero(np.diff(chunk)) + 1
    return [slice(first, end) for first, end in itertools.pairwise([0, *borders.tolist(), len(counts)])]


_ONES = np.array([bin(number).count("1") for number in range(2**_BAND_BITS)], np.uint8)
