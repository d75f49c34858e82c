"""NumPy's `.npz` files."""

import functools
import io
import math
import re
import zipfile

import numpy as np

from keras_vit.atomic_files import replace_file_atomically
from keras_vit.weights.containers.headers import ArrayHeader, checked_name, num_bytes_of, verified

_NPY_HEADER_BYTES = 1_012  # For arrays of numbers, NumPy writes headers of up to 128 bytes.
_CHUNK_BYTES = 2**20


def open_npz(path, resources):
    """({name: `ArrayHeader`}, {"license": licence} or {}) of a file. The `ExitStack` `resources` closes the file."""
    archive = resources.enter_context(zipfile.ZipFile(path))
    metadata = re.fullmatch(rb"license: ([ -~]+)", archive.comment)
    stored = verified(path, (_npz_array(archive, member) for member in archive.infolist()))
    return stored, {"license": metadata[1].decode()} if metadata else {}


def _npz_array(archive, member):
    name = member.filename.removesuffix(".npy")
    # NumPy uses only these two compression methods. With other methods, zipfile may decompress a whole member even if
    # only its header is read.
    if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(
            f"its member {member.filename!r} is encrypted, or compressed in another way than NumPy's files"
        )
    if name == member.filename:
        raise ValueError(f"its member {name!r} is not an array (.npy)")
    try:
        with archive.open(member) as file:
            shape, fortran_order, dtype, header_bytes = _npy_header(file)
    except Exception as error:
        raise ValueError(f"its member {member.filename!r} is damaged: {error!r}") from error
    num_bytes = num_bytes_of(shape, dtype.itemsize)
    if dtype.hasobject:
        num_bytes = 0  # Pickled objects are never read.
    elif header_bytes + num_bytes != member.file_size:
        raise ValueError(
            f"its member {member.filename!r} declares {num_bytes:,} bytes of values, but contains a different number"
        )
    is_bfloat16 = dtype.kind == "V" and dtype.itemsize == 2 and dtype.fields is None  # np.savez stores bfloat16 as V2.
    stored_dtype = np.dtype("<u2") if is_bfloat16 else dtype
    order = "F" if fortran_order else "C"
    read = functools.partial(_read_npy, archive, member, header_bytes, shape, stored_dtype, order)
    return ArrayHeader(name, shape, "bfloat16" if is_bfloat16 else dtype.name, num_bytes, read)


def _npy_header(file):
    """(shape, whether in Fortran order, type, length of the header). Reads at most `_NPY_HEADER_BYTES`."""
    head = io.BytesIO(file.read(_NPY_HEADER_BYTES))
    version = np.lib.format.read_magic(head)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format is not supported, only 1.0 and 2.0")
    return *readers[version](head), head.tell()


def _read_npy(archive, member, header_bytes, shape, dtype, order):
    values = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    position = 0
    with archive.open(member) as file:
        file.read(header_bytes)
        while chunk := file.read(_CHUNK_BYTES):  # At the end of the member, zipfile verifies its checksum.
            values[position : position + len(chunk)] = np.frombuffer(chunk, np.uint8)
            position += len(chunk)
    if position < len(values):
        raise ValueError("it is cut off")
    return values.view(dtype).reshape(shape, order=order)


def write_npz(path, arrays, licence=None):
    """Writes arrays as `numpy.savez` does, uncompressed. After an error, there is no incomplete file.

    Args:
        path: Path of the file. An existing file is replaced.
        arrays: {name: array}. The arrays are written in this order, each with its own dtype.
        licence: Licence of the arrays, which is stored as the comment of the zip archive, or `None`.

    Raises:
        ValueError: If a name or an array cannot be stored.

    Example:

    >>> import os, tempfile, numpy as np
    >>> from keras_vit.weights.containers.npz import write_npz
    >>> path = f"{tempfile.mkdtemp()}/head"
    >>> write_npz(path, {"head/bias": np.zeros(3, "float32")})
    >>> np.load(path)["head/bias"]
    array([0., 0., 0.], dtype=float32)
    """
    arrays = {checked_name(name): np.asarray(array, order="C") for name, array in arrays.items()}
    with replace_file_atomically(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        if licence:
            archive.comment = f"license: {licence}".encode("ascii")
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise ValueError(f"The array {name!r} contains Python objects. Accepted are arrays of numbers.")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
