"""The arrays of a file as its headers declare them, and what may be declared."""

import collections.abc
import dataclasses
import math
import os

MAX_ARRAYS = 10_000
"""Of a file: published models with the state of their optimizer have up to some thousand."""

# What arrays may take in memory, for each byte of their file and besides. Weights hardly compress; while they are read
# and fitted to a model there are up to three copies.
_MAX_INFLATION, _FREE_BYTES = 25, 16 * 2**20
_MAX_NAME_LENGTH = 500
_MAX_DIMENSIONS = 32


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in a file: `num_bytes` is what `read()` takes; bfloat16 is read as uint16."""

    name: str
    shape: tuple
    dtype: str
    num_bytes: int
    read: collections.abc.Callable


def verified(path, arrays):
    """{name: array} of the arrays of a file; refuses what is ambiguous, and what would grow out of proportion."""
    stored = {}
    for array in arrays:
        if len(stored) == MAX_ARRAYS:
            raise ValueError(f"it holds more than {MAX_ARRAYS:,} arrays")
        if stored.setdefault(checked_name(array.name), array) is not array:
            raise ValueError(f"it holds two arrays named {array.name!r}")
    total = sum(array.num_bytes for array in stored.values())
    limit = _MAX_INFLATION * os.path.getsize(path) + _FREE_BYTES
    if total > limit:
        raise ValueError(f"its arrays declare {total:,} bytes, a file of this size may hold {limit:,}")
    return stored


def checked_name(name):
    """A name that is no path to elsewhere, for those who extract archives."""
    if not isinstance(name, str) or not name or name[0] == "/" or "\\" in name or ".." in name.split("/"):
        raise ValueError(f"the array's name {name!r} is refused: accepted is text without '..', '\\' or a leading '/'")
    if len(name) > _MAX_NAME_LENGTH:
        raise ValueError(f"an array's name of {len(name):,} characters is refused: accepted are {_MAX_NAME_LENGTH}")
    return name


def num_bytes_of(shape, itemsize):
    """Bytes of an array of a declared shape."""
    if len(shape) > _MAX_DIMENSIONS or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"the shape {str(shape)[:200]} is impossible")
    return math.prod(shape) * itemsize
