"""Reads and writes files of named arrays: .npz, .safetensors, HDF5 and PyTorch's .pth. Files are not trusted."""

import collections.abc
import contextlib
import os
import zipfile

import numpy as np

from keras_vit.atomic_files import replace_file_atomically
from keras_vit.weights.containers import READABLE, errors_about, open_container
from keras_vit.weights.stored import checked_name


class ArrayFile(collections.abc.Mapping):
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
    >>> from keras_vit.weights.files import open_arrays, write_safetensors
    >>> path = f"{tempfile.mkdtemp()}/head.safetensors"
    >>> write_safetensors(path, {"head/bias": np.zeros(3, "float32")}, {"format": "pt"})
    >>> with open_arrays(path) as arrays:
    ...     print("head/bias" in arrays, len(arrays), arrays.metadata)
    True 1 {'format': 'pt'}
    """

    def __init__(self, path, container, stored, metadata, resources):
        self.path = path
        self.container = container
        self.shapes = {name: array.shape for name, array in stored.items()}
        self.dtypes = {name: array.dtype for name, array in stored.items()}
        self.metadata = metadata
        self._readers = {name: array.read for name, array in stored.items()}
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
        values = _float32_from_bfloat16(values) if dtype == "bfloat16" else values
        return values.astype(values.dtype.newbyteorder("="), copy=False)

    def __contains__(self, name):  # `Mapping.__contains__` would read the array.
        return name in self.shapes

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self):
        return len(self.shapes)

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
    >>> from keras_vit.weights.files import open_arrays, write_npz
    >>> path = f"{tempfile.mkdtemp()}/head.npz"
    >>> write_npz(path, {"head/bias": np.array([1, 2, 3], "float16")})
    >>> with open_arrays(path) as arrays:
    ...     print(arrays.container, arrays.shapes, arrays.dtypes, arrays["head/bias"])
    npz {'head/bias': (3,)} {'head/bias': 'float16'} [1. 2. 3.]
    """
    path = os.fspath(path)
    with contextlib.ExitStack() as resources:
        container, stored, metadata = open_container(path, resources)
        return ArrayFile(path, container, stored, metadata, resources.pop_all())


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
    >>> from keras_vit.weights.files import write_npz
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
    >>> from keras_vit.weights.files import write_safetensors
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


def write_h5(path, arrays):
    """Writes arrays as datasets of an HDF5 file. After an error, there is no incomplete file.

    Args:
        path: Path of the file. An existing file is replaced.
        arrays: {name: array}. A name is the path of a dataset, such as `"group/subgroup/dataset"`.
    """
    import h5py

    with replace_file_atomically(path) as file, h5py.File(file, "w") as target:
        for name, array in arrays.items():
            target.create_dataset(name, data=array)


def _float32_from_bfloat16(values):
    """Converts bfloat16, stored as uint16, to float32. The bits of a bfloat16 are the upper half of a float32."""
    bits = values.astype(np.uint32)
    np.left_shift(bits, np.uint32(16), out=bits)
    return bits.view(np.float32)
