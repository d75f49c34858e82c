"""All similar hashes and no others are found, without comparing every pair."""

import numpy as np
import pytest

from training.inspection import hash_index
from training.inspection.hash_index import HashIndex, distances


def random_hashes(count, seed):
    return np.random.default_rng(seed).integers(0, 2**64, count, "uint64", endpoint=False)


def flipped(hashes, counts, seed):
    """Hashes with a given number of flipped bits each."""
    rng = np.random.default_rng(seed)
    masks = [sum(1 << int(bit) for bit in rng.choice(64, count, replace=False)) for count in counts]
    return hashes ^ np.array(masks, "uint64")


def brute_force(known, others, distance):
    bits = np.unpackbits((others[:, None] ^ known).view("uint8").reshape(len(others), len(known), 8), axis=-1)
    return np.argwhere(bits.sum(axis=-1) <= distance)


@pytest.mark.parametrize("max_pairs", [3, 10**6])
def test_finds_what_comparing_all_finds(max_pairs, monkeypatch):
    monkeypatch.setattr(hash_index, "MAX_PAIRS", max_pairs)
    known = random_hashes(300, seed=0)
    known[250:] = known[:50]  # Some hashes are equal.
    near = flipped(known[:130], np.arange(130) % 13, seed=1)
    others = np.concatenate([near, random_hashes(40, seed=2)])
    for distance in (0, 3, 4, 7, 8, 11):
        found = HashIndex(known).find_pairs(others, distance)
        np.testing.assert_array_equal(found, brute_force(known, others, distance))
        assert len(found) > 10
    assert HashIndex(known).find_pairs(others[:0], 11).shape == (0, 2)
    assert HashIndex(known[:5]).find_pairs(random_hashes(9, seed=3), 11).shape == (0, 2)


def test_distances_count_bits():
    first = np.array([0, 2**64 - 1, 5], "uint64")
    assert distances(first, np.array([0, 0, 6], "uint64")).tolist() == [0, 64, 2]
