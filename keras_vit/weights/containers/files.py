"""Opens files of named arrays: .npz, .safetensors, HDF5 and PyTorch's .pth.

The format is detected from the first bytes of a file, not from its name. Names, shapes and types are read from the
headers. Before memory is allocated, the sizes that the headers declare are compared with the file's size. Arrays are
read on demand.
"""

import collections.abc
import contextlib
import json
import math
import os
import re
import zipfile

import numpy as np

from keras_vit.weights.containers.h5 import open_h5
from keras_vit.weights.containers.headers import ADVICE, MAX_HEADER_BYTES, READABLE, errors_about
from keras_vit.weights.containers.npz import open_npz
from keras_vit.weights.containers.pth import open_pth
from keras_vit.weights.containers.safetensors import open_safetensors

_ACCEPTED = "Accepted are .npz, .safetensors (also its index, .safetensors.index.json), HDF5 (.h5) and PyTorch's .pth."

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


class _NamedArrays(collections.abc.Mapping):
    """A mapping of names to arrays, whose attribute `shapes` is {name: shape}. Only `__getitem__` reads an array."""

    shapes: dict[str, tuple[int, ...]]

    def __contains__(self, name):
        return name in self.shapes

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self):
        return len(self.shapes)


class ArrayFile(_NamedArrays):
    """The arrays of a file, as returned by `open_arrays`. An array is read when it is accessed.

    An `ArrayFile` maps names to NumPy arrays, which remain valid after the file is closed. bfloat16 is converted to
    float32 without loss. All other types remain as stored. At the end of a `with` statement, the file is closed.

    Attributes:
        path: Path of the file.
        container: Format of the file: `"npz"`, `"safetensors"`, `"h5"` or `"pth"`.
        shapes: {name: shape}. It is available without reading values.
        dtypes: {name: type in the file, such as `"float32"` or `"bfloat16"`}. Floating-point numbers of 16 to 64 bits,
            integers and booleans can be read.
        metadata: {name: text} from the header of a safetensors file, or the `license` of an `.npz` file, otherwise
            empty.

    Example:

    >>> import tempfile, numpy as np
    >>> from keras_vit.weights.containers.files import open_arrays
    >>> from keras_vit.weights.containers.safetensors import write_safetensors
    >>> path = f"{tempfile.mkdtemp()}/head.safetensors"
    >>> write_safetensors(path, {"head/bias": np.zeros(3, "float32")}, {"format": "pt"})
    >>> with open_arrays(path) as arrays:
    ...     print("head/bias" in arrays, len(arrays), arrays.metadata)
    True 1 {'format': 'pt'}
    """

    def __init__(self, path, container, headers, metadata, resources):
        self.path = path
        self.container = container
        self.shapes = {name: array.shape for name, array in headers.items()}
        self.dtypes = {name: array.dtype for name, array in headers.items()}
        self.metadata = metadata
        self._readers = {name: array.read for name, array in headers.items()}
        self._resources = resources

    def __getitem__(self, name):
        dtype = self.dtypes[name]
        if not self._readers:
            raise ValueError(f"{self.path} is closed. Open it again with open_arrays.")
        if dtype not in READABLE:
            raise ValueError(
                f"{self.path}: the array {name!r} is of type {dtype}, which is not supported. Accepted "
                f"are {', '.join(sorted(READABLE))}. Convert the file with the program that wrote it."
            )
        with errors_about(f"{self.path}, array {name!r},"):
            values = self._readers[name]()
        if dtype == "bfloat16":  # Read as uint16. The bits of a bfloat16 are the upper half of a float32.
            bits = values.astype(np.uint32)
            values = np.left_shift(bits, np.uint32(16), out=bits).view(np.float32)
        return values.astype(values.dtype.newbyteorder("="), copy=False)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Closes the file. Arrays that were already read remain valid."""
        self._readers = {}
        self._resources.close()


def open_arrays(path):
    """Opens a file of named arrays. The format is detected from the content.

    Files are not trusted. Pickled objects are never loaded, and links to other files are not followed. A file is
    refused if it is damaged or inconsistent, or if its arrays need more memory than 16 MB plus 25 times the size of the
    file.

    Args:
        path: Path of a `.npz`, `.safetensors`, HDF5 or `.pth` file, or of a `.safetensors.index.json` with
            its shards in the same folder. A `.pth` file needs torch. The keys of its nested dictionaries are joined: a
            name is, for example, `model/patch_embed.proj.weight`. Values that are not tensors are left out.

    Returns:
        An `ArrayFile`.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If the file needs torch, and torch is not installed.
        ValueError: If the file has another format, is damaged, or is refused.

    Example:

    >>> import tempfile, numpy as np
    >>> from keras_vit.weights.containers.files import open_arrays
    >>> from keras_vit.weights.containers.npz import write_npz
    >>> path = f"{tempfile.mkdtemp()}/head.npz"
    >>> write_npz(path, {"head/bias": np.array([1, 2, 3], "float16")})
    >>> with open_arrays(path) as arrays:
    ...     print(arrays.container, arrays.shapes, arrays.dtypes, arrays["head/bias"])
    npz {'head/bias': (3,)} {'head/bias': 'float16'} [1. 2. 3.]
    """
    path = os.fspath(path)
    with contextlib.ExitStack() as resources:
        container = _format_of(path)
        with errors_about(path):
            headers, metadata = _OPENERS[container](path, resources)
        container = "safetensors" if container == "index" else container
        return ArrayFile(path, container, headers, metadata, resources.pop_all())


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
    raise ValueError(f"{path} is of an unknown format. It begins with {head[:8]!r}. {_ACCEPTED} {ADVICE}")


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
        arrays_by_shard[shard], shard_metadata = open_safetensors(shard_path, resources)
        metadata |= shard_metadata
    missing = [name for name, shard in shard_of.items() if name not in arrays_by_shard[shard]]
    if missing:
        raise ValueError(f"{len(missing)} of its arrays are missing in its shards, such as {missing[0]!r}")
    return {name: arrays_by_shard[shard][name] for name, shard in shard_of.items()}, metadata


_OPENERS = {
    "npz": open_npz,
    "safetensors": open_safetensors,
    "index": _open_index,
    "h5": open_h5,
    "pth": lambda path, resources: (open_pth(path), {}),
}
"""{format: function that returns ({name: `ArrayHeader`}, metadata) of a file}"""


class Renamed(_NamedArrays):
    """The arrays of a file under other names. An array is read when it is accessed.

    Args:
        file: Mapping of names to arrays with an attribute `shapes`.
        names: {new name: name in the file, or (name, index) for one entry of a stacked array}.

    Attributes:
        left_out: Names in the file that have no new name.
    """

    def __init__(self, file, names):
        self._file = file
        self._names = {new: old if isinstance(old, tuple) else (old, None) for new, old in names.items()}
        self._stacked: tuple = None, None
        self.shapes = {
            new: file.shapes[old] if index is None else file.shapes[old][1:]
            for new, (old, index) in self._names.items()
        }
        renamed = {old for old, _ in self._names.values()}
        self.left_out = tuple(name for name in file if name not in renamed)

    def __getitem__(self, name):
        old, index = self._names[name]
        if index is None:
            return self._file[old]
        if self._stacked[0] != old:  # The entries of a stacked array are usually accessed one after the other.
            self._stacked = old, self._file[old]
        return self._stacked[1][index]


class Reshaped(_NamedArrays):
    """The arrays of a file, some of which get another shape when they are read.

    Args:
        file: Mapping of names to arrays with an attribute `shapes`.
        changes: {name: (new shape, function that changes the array)}
    """

    def __init__(self, file, changes):
        self._file, self._changes = file, changes
        self.shapes = file.shapes | {name: shape for name, (shape, _) in changes.items()}

    def __getitem__(self, name):
        array = self._file[name]
        return self._changes[name][1](array) if name in self._changes else array


def as_patch_kernel(shape, channels=3):
    """The change of `Reshaped` from a layer on the pixels of square patches, (D, P P C), to a kernel (D, C, P, P)."""
    dim, side = shape[0], math.isqrt(shape[1] // channels)
    if side * side * channels != shape[1]:
        raise ValueError(f"Patches must be square, with {channels} channels. Received: a layer of the shape {shape}")
    new = dim, side, side, channels
    return (dim, channels, side, side), lambda array: array.reshape(new).transpose(0, 3, 1, 2)


class Merged(_NamedArrays):
    """The arrays of several files as one mapping."""

    def __init__(self, files):
        self._file_of = {name: file for file in files for name in file}
        self.shapes = {name: shape for file in files for name, shape in file.shapes.items()}
        self.container = files[0].container

    def __getitem__(self, name):
        return self._file_of[name][name]
