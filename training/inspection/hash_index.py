"""Hashes that differ in a few bits, found without comparing each with each. N known hashes, M others."""

import itertools

import numpy as np

MAX_PAIRS = 20_000_000
"""Candidates that are compared at a time."""
_BANDS, _BAND_BITS = 4, 16


class HashIndex:
    """Finds those of N hashes that are near others.

    Multi-index hashing (Norouzi, Punjani and Fleet, arXiv 1307.2982): two hashes that differ in at most d of their 64
    bits differ in at most d // 4 in one of their four bands of 16 bits. So those are enough that have such a band.

    Args:
        hashes: uint64 (N,)
    """

    def __init__(self, hashes):
        self._hashes = hashes
        self._orders, self._starts = [], []
        for band in _bands(hashes):
            self._orders.append(np.argsort(band, kind="stable"))
            counts = np.bincount(band, minlength=2**_BAND_BITS)
            self._starts.append(np.concatenate([[0], np.cumsum(counts)]))

    def near(self, hashes, distance):
        """The pairs of hashes that differ in few bits.

        Args:
            hashes: uint64 (M,)
            distance: Bits in which they may differ, from 0 to 11: the lookups grow with it, to 548 a hash.

        Returns:
            int64 (pairs, 2): index of the other hash, index of the known one; in ascending order.
        """
        found = [np.empty((0, 2), np.int64)]
        for known, others in self._candidates(hashes, distance // _BANDS):
            is_near = distances(self._hashes[known], hashes[others]) <= distance
            found.append(np.stack([others[is_near], known[is_near]], axis=1))
        return np.unique(np.concatenate(found), axis=0)

    def _candidates(self, hashes, flips):
        """Yields (known indices, other indices), equally many, of those that have a band with so few flips."""
        for band, order, starts in zip(_bands(hashes), self._orders, self._starts, strict=True):
            for mask in _masks(flips):
                first = starts[band ^ mask]
                counts = starts[(band ^ mask) + 1] - first
                for rows in _portions(counts):
                    others = np.repeat(np.arange(len(hashes))[rows], counts[rows])
                    ends = np.cumsum(counts[rows])
                    within = np.arange(len(others)) - np.repeat(ends - counts[rows], counts[rows])
                    yield order[np.repeat(first[rows], counts[rows]) + within], others


def distances(first, second):
    """In how many bits hashes differ, elementwise."""
    return sum(_ONES[band] for band in _bands(first ^ second))


def _bands(hashes):
    """The four bands of hashes, integers below 2**16."""
    lowest = np.uint64(2**_BAND_BITS - 1)
    return [((hashes >> np.uint64(_BAND_BITS * band)) & lowest).astype(np.int64) for band in range(_BANDS)]


def _masks(flips):
    """All numbers of 16 bits of which at most so many are set."""
    for count in range(flips + 1):
        for bits in itertools.combinations(range(_BAND_BITS), count):
            yield sum(1 << bit for bit in bits)


def _portions(counts):
    """Slices of the rows, each with not too many candidates in all."""
    portion = np.cumsum(counts) // MAX_PAIRS
    borders = np.flatnonzero(np.diff(portion)) + 1
    return [slice(first, end) for first, end in itertools.pairwise([0, *borders.tolist(), len(counts)])]


_ONES = np.array([bin(number).count("1") for number in range(2**_BAND_BITS)], np.uint8)
