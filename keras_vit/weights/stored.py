"""Arrays as declared by the headers of a file, and limits of their number and size."""

import collections.abc
import dataclasses
import math
import os

MAX_ARRAYS = 10_000
"""Maximum number of arrays in a file. A published model with the state of its optimizer has a few thousand."""

# Maximum size of all arrays: `_MAX_INFLATION` times the size of the file, plus `_FREE_BYTES`. Weights can hardly be
# compressed. Up to three copies of the arrays are in memory while they are read and adapted to a model.
_MAX_INFLATION, _FREE_BYTES = 25, 16 * 2**20
_MAX_NAME_LENGTH = 500
_MAX_DIMENSIONS = 32


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in a file. `read()` allocates `num_bytes` bytes, and returns bfloat16 arrays as uint16."""

    name: str
    shape: tuple
    dtype: str
    num_bytes: int
    read: collections.abc.Callable


def verified(path, arrays):
    """Checks the names, the number and the total size of the arrays in a file. Returns {name: array}."""
    stored = {}
    for array in arrays:
        if len(stored) == MAX_ARRAYS:
            raise ValueError(f"it contains more than {MAX_ARRAYS:,} arrays")
        if stored.setdefault(checked_name(array.name), array) is not array:
            raise ValueError(f"it contains two arrays named {array.name!r}")
    total = sum(array.num_bytes for array in stored.values())
    limit = _MAX_INFLATION * os.path.getsize(path) + _FREE_BYTES
    if total > limit:
        raise ValueError(f"its arrays declare {total:,} bytes, but a file of this size may contain at most {limit:,}")
    return stored


def checked_name(name):
    """Returns a name. Raises ValueError if extracting a file of this name could write outside the folder."""
    if not isinstance(name, str) or not name or name[0] == "/" or "\\" in name or ".." in name.split("/"):
        raise ValueError(
            f"the array's name {name!r} is not accepted: it must be text that is not empty, does not start with '/' "
            f"and does not contain '..' or '\\'"
        )
    if len(name) > _MAX_NAME_LENGTH:
        raise ValueError(f"an array's name has {len(name):,} characters, and at most {_MAX_NAME_LENGTH} are accepted")
    return name


def num_bytes_of(shape, itemsize):
    """Number of bytes of an array with a declared shape. Raises ValueError if the shape is impossible."""
    if len(shape) > _MAX_DIMENSIONS or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"the shape {str(shape)[:200]} is impossible")
    return math.prod(shape) * itemsize
