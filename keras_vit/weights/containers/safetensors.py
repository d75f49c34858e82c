"""`.safetensors` files."""

import functools

import numpy as np

from keras_vit.atomic_files import replace_file_atomically
from keras_vit.weights.containers.headers import (
    MAX_HEADER_BYTES,
    READABLE,
    SAFETENSORS_DTYPES,
    ArrayHeader,
    checked_name,
    num_bytes_of,
    verified,
)


def open_safetensors(path, resources):
    """({name: `ArrayHeader`}, metadata) of a file. The `ExitStack` `resources` closes the file."""
    import safetensors

    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header declares {length:,} bytes, but at most {MAX_HEADER_BYTES:,} are accepted")
    file = resources.enter_context(safetensors.safe_open(path, framework="numpy"))
    return verified(path, map(functools.partial(_safetensors_array, file), file.keys())), file.metadata() or {}


def _safetensors_array(file, name):
    section = file.get_slice(name)
    shape, dtype = tuple(section.get_shape()), section.get_dtype()
    dtype = SAFETENSORS_DTYPES.get(dtype, dtype)

    def read():
        values = file.get_tensor(name)
        return values.view("uint16") if dtype == "bfloat16" else values

    # safetensors has checked that all values are in the file. The size needs no further check, so it is set to 0.
    return ArrayHeader(name, shape, dtype, num_bytes_of(shape, 0), read)


def write_safetensors(path, arrays, metadata=None):
    """Writes arrays in the safetensors format. After an error, there is no incomplete file.

    Args:
        path: Path of the file. An existing file is replaced.
        arrays: {name: array}. Each array is written with its own dtype.
        metadata: {name: text} for the file's header, or `None`.

    Raises:
        TypeError: If `metadata` contains anything except text.
        ValueError: If a name or an array cannot be stored.

    Example:

    >>> import os, tempfile, numpy as np
    >>> from keras_vit.weights.containers.safetensors import write_safetensors
    >>> path = f"{tempfile.mkdtemp()}/head"
    >>> write_safetensors(path, {"head/bias": np.zeros(3, "float32")}, {"format": "pt"})
    >>> os.listdir(os.path.dirname(path))
    ['head']
    """
    from safetensors.numpy import save_file

    metadata = dict(metadata or {})
    if not all(isinstance(text, str) for item in metadata.items() for text in item):
        raise TypeError(f"metadata must be a dictionary from text to text. Received: {metadata!r}")
    arrays = {checked_name(name): np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in arrays.items():
        if name == "__metadata__" or array.dtype.name not in READABLE:
            raise ValueError(
                f"safetensors cannot store the array {name!r} of type {array.dtype}. Accepted are the types "
                f"{', '.join(sorted(READABLE))}, and all names except '__metadata__'."
            )
    arrays = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in arrays.items()}
    with replace_file_atomically(path) as unfinished:
        save_file(arrays, unfinished, metadata)
