"""Lists the arrays of files that are not trusted.

The format is detected from the first bytes of a file, not from its name. Names, shapes and types are read from the
headers. Before memory is allocated, the sizes that the headers declare are compared with the file's size. Arrays are
read on demand.
"""

import contextlib
import functools
import io
import itertools
import json
import math
import os
import re
import zipfile

import numpy as np

from keras_vit.weights.pth import open_pth
from keras_vit.weights.stored import MAX_ARRAYS, Stored, num_bytes_of, verified

MAX_HEADER_BYTES = 10_000_000
"""Maximum size of a safetensors header or an index of shards. A header that lists 1,000 arrays has 1 % of this size."""
_NPY_HEADER_BYTES = 1_012  # For arrays of numbers, NumPy writes headers of up to 128 bytes.
_CHUNK_BYTES = 2**20
SAFETENSORS_DTYPES = {
    **{"BOOL": "bool", "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
}
"""{type in a safetensors file: NumPy's name of the type}, for the types that can be read and written."""
READABLE = set(SAFETENSORS_DTYPES.values())
_ACCEPTED = "Accepted are .npz, .safetensors (also its index, .safetensors.index.json), HDF5 (.h5) and PyTorch's .pth."
_ADVICE = "Download the file again, or ask its publisher for another format."

# (first bytes of a file, format). torch.save writes a zip archive. Its old format begins with a pickled magic number.
_SIGNATURES = (
    (rb"PK\x03\x04", "zip"),
    (rb"\x89HDF\r\n\x1a\n", "h5"),
    (rb".{7}[\x00\x80-\xff]\{", "safetensors"),  # The header's length (below 2^56, or negative), then the header.
    (rb"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", "pth"),
    (rb"(\xef\xbb\xbf)?\s*\{", "index"),
)
_REFUSED_SIGNATURES = (
    (rb"(\xef\xbb\xbf)?\s*<", "is a web page that was saved instead of the file: download the file itself."),
    (rb"version https://git-lfs", "is a pointer of Git LFS, not the file: run `git lfs pull` in the repository."),
    (
        rb"\x80[\x02-\x05]",
        "is a pickle, which can run any code when it is loaded. Convert it with the program that wrote it.",
    ),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|.{257}ustar", "is a compressed file or a tar archive: unpack it first."),
    (rb"\x93NUMPY", "is a single array without a name (.npy)."),
    (rb"PK\x05\x06", "is an empty zip archive."),
    (rb"\s*\[", "is JSON."),
    (rb"$", "is empty: download it again."),
)


def open_container(path, resources):
    """Opens a file. Returns (format, {name: `Stored`}, metadata). The `ExitStack` `resources` closes the file."""
    container = _format_of(path)
    with errors_about(path):
        stored, metadata = _OPENERS[container](path, resources)
    return "safetensors" if container == "index" else container, stored, metadata


@contextlib.contextmanager
def errors_about(subject):
    """Converts all errors that parsers raise for a damaged file to a ValueError about `subject`."""
    try:
        yield
    except (ImportError, FileNotFoundError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{subject} cannot be read: {str(error) or repr(error)}. {_ADVICE}") from error


def _format_of(path):
    os.stat(path)  # Raises FileNotFoundError.
    if not os.path.isfile(path):
        raise ValueError(f"{path} is {'a folder' if os.path.isdir(path) else 'no file'}. {_ACCEPTED}")
    with open(path, "rb") as file:
        head = file.read(512)
    for pattern, kind in _SIGNATURES:
        if re.match(pattern, head, re.DOTALL):
            return _zip_format(path) if kind == "zip" else kind
    for pattern, problem in _REFUSED_SIGNATURES:
        if re.match(pattern, head, re.DOTALL):
            raise ValueError(f"{path} {problem} {_ACCEPTED}")
    raise ValueError(f"{path} is of an unknown format. It begins with {head[:8]!r}. {_ACCEPTED} {_ADVICE}")


def _zip_format(path):
    with errors_about(path), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(re.fullmatch(r"[^/]+/data\.pkl", name) for name in names):
        return "pth"
    if any(name.endswith(".npy") for name in names):
        return "npz"
    if "model.weights.h5" in names:
        raise ValueError(
            f"{path} is a .keras file: call keras_vit.from_pretrained or keras.saving.load_model. {_ACCEPTED}"
        )
    raise ValueError(f"{path} is a zip archive without arrays: unpack it first. {_ACCEPTED}")


def _open_npz(path, resources):
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
    return Stored(name, shape, "bfloat16" if is_bfloat16 else dtype.name, num_bytes, read)


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


def _open_safetensors(path, resources):
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
    return Stored(name, shape, dtype, num_bytes_of(shape, 0), read)


def _without_duplicates(pairs):
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("it contains a name twice")
    return unique


def _open_index(path, resources):
    """Opens the shards that an index lists. Its `weight_map` is {name of an array: file name of the array's shard}."""
    if os.path.getsize(path) > MAX_HEADER_BYTES:
        raise ValueError(f"it is JSON of more than {MAX_HEADER_BYTES:,} bytes")
    with open(path, "rb") as file:
        index = json.loads(file.read(), object_pairs_hook=_without_duplicates)
    shard_of = index.get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise ValueError("it is JSON, but without the weight_map of a safetensors index")
    arrays_by_shard, metadata = {}, {}
    for shard in dict.fromkeys(shard_of.values()):
        if not re.fullmatch(r"[\w-][\w.-]*", shard):
            raise ValueError(f"its shard {shard!r} is not a plain file name in the same folder")
        shard_path = os.path.join(os.path.dirname(path), shard)
        if _format_of(shard_path) != "safetensors":
            raise ValueError(f"its shard {shard!r} is not a safetensors file")
        arrays_by_shard[shard], shard_metadata = _open_safetensors(shard_path, resources)
        metadata |= shard_metadata
    missing = [name for name, shard in shard_of.items() if name not in arrays_by_shard[shard]]
    if missing:
        raise ValueError(f"{len(missing)} of its arrays are missing in its shards, such as {missing[0]!r}")
    return {name: arrays_by_shard[shard][name] for name, shard in shard_of.items()}, metadata


def _open_h5(path, resources):
    import h5py

    file = resources.enter_context(h5py.File(path, "r"))
    numbers = itertools.count(1)
    if file.visit_links(lambda name: next(numbers) > MAX_ARRAYS or None):  # Listing takes longer than counting.
        raise ValueError(f"it contains more than {MAX_ARRAYS:,} arrays and groups")
    return verified(path, _h5_arrays(file, "", set())), {}


def _h5_arrays(group, prefix, seen):
    import h5py

    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        raise ValueError(f"its group {prefix!r} occurs twice, through two links")
    seen.add(address)
    for key in group:
        name = f"{prefix}{key}"
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise ValueError(f"{name!r} is a link, and links are not followed")
        item = group[key]
        if isinstance(item, h5py.Group):
            yield from _h5_arrays(item, f"{name}/", seen)
        elif isinstance(item, h5py.Dataset):
            yield _h5_array(name, item)


def _h5_array(name, dataset):
    if dataset.is_virtual or dataset.external or dataset.shape is None:
        raise ValueError(f"the values of {name!r} are not in the file")
    # HDF5 decompresses whole chunks, and a chunk may be larger than the array.
    num_bytes = max(math.prod(dataset.shape), math.prod(dataset.chunks or ())) * dataset.dtype.itemsize
    read = functools.partial(_read_h5, dataset, os.path.getsize(dataset.file.filename))
    return Stored(name, dataset.shape, dataset.dtype.name, num_bytes, read)


def _read_h5(dataset, file_size):
    values = np.asarray(dataset[()])
    # HDF5 returns zeros for values that were never written, or that were cut off after the file was opened.
    if os.path.getsize(dataset.file.filename) != file_size or (dataset.size and not dataset.id.get_storage_size()):
        raise ValueError("its values are not in the file")
    return values


_OPENERS = {
    "npz": _open_npz,
    "safetensors": _open_safetensors,
    "index": _open_index,
    "h5": _open_h5,
    "pth": lambda path, resources: (open_pth(path), {}),
}
