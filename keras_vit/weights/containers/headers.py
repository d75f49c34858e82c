"""The headers of arrays in a file, with limits of their number and size."""

import collections.abc
import contextlib
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
MAX_HEADER_BYTES = 10_000_000
"""Maximum size of a safetensors header or an index of shards. A header that lists 1,000 arrays has 1 % of this size."""
SAFETENSORS_DTYPES = {
    **{"BOOL": "bool", "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
}
"""{type in a safetensors file: NumPy's name of the type}, for the types that can be read and written."""
READABLE = set(SAFETENSORS_DTYPES.values())
ADVICE = "Download the file again, or ask its publisher for another format."


@dataclasses.dataclass(frozen=True)
class ArrayHeader:
    """The header of an array in a file. `read()` allocates `num_bytes` bytes, and returns bfloat16 arrays as uint16."""

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


@contextlib.contextmanager
def errors_about(subject):
    """Converts all errors that parsers raise for a damaged file to a ValueError about `subject`."""
    try:
        yield
    except (ImportError, FileNotFoundError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{subject} cannot be read: {str(error) or repr(error)}. {ADVICE}") from error
