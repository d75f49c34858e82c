"""The arrays that a file's headers declare, and the limits of what they may declare."""

import collections.abc
import dataclasses
import math
import os

MAX_ARRAYS = 10_000
"""The most arrays in a file. Published models with the state of their optimizer have some thousand."""

# The most bytes of arrays in memory: so many for each byte of the file, and some in addition. Weights hardly compress.
# While they are read and adapted to a model, there are up to three copies.
_MAX_INFLATION, _FREE_BYTES = 25, 16 * 2**20
_MAX_NAME_LENGTH = 500
_MAX_DIMENSIONS = 32


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in a file. `read()` allocates `num_bytes`, and returns bfloat16 as uint16."""

    name: str
    shape: tuple
    dtype: str
    num_bytes: int
    read: collections.abc.Callable


def verified(path, arrays):
    """{name: array} of the arrays of a file, after checks of their names, number and total size."""
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
    """Checks that a name cannot lead out of the folder where someone extracts an archive; returns it."""
    if not isinstance(name, str) or not name or name[0] == "/" or "\\" in name or ".." in name.split("/"):
        raise ValueError(f"the array's name {name!r} is refused: accepted is text without '..', '\\' or a leading '/'")
    if len(name) > _MAX_NAME_LENGTH:
        raise ValueError(f"an array's name of {len(name):,} characters is refused: accepted are {_MAX_NAME_LENGTH}")
    return name


def num_bytes_of(shape, itemsize):
    """Number of bytes of an array of a declared shape; an impossible shape raises a ValueError."""
    if len(shape) > _MAX_DIMENSIONS or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"the shape {str(shape)[:200]} is impossible")
    return math.prod(shape) * itemsize
