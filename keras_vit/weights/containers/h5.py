"""HDF5 files."""

import functools
import itertools
import math
import os

import numpy as np

from keras_vit.atomic_files import replace_file_atomically
from keras_vit.weights.containers.headers import MAX_ARRAYS, ArrayHeader, verified


def open_h5(path, resources):
    """({name: `ArrayHeader`}, {}) of a file. The `ExitStack` `resources` closes the file."""
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
    return ArrayHeader(name, dataset.shape, dataset.dtype.name, num_bytes, read)


def _read_h5(dataset, file_size):
    values = np.asarray(dataset[()])
    # HDF5 returns zeros for values that were never written, or that were cut off after the file was opened.
    if os.path.getsize(dataset.file.filename) != file_size or (dataset.size and not dataset.id.get_storage_size()):
        raise ValueError("its values are not in the file")
    return values


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
