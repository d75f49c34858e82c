"""Reads PyTorch's files. They are pickled dictionaries, from which only tensors are read."""

import argparse
import functools
import io
import pickle
import pickletools
import re
import zipfile

import numpy as np

from keras_vit.weights.containers.headers import ArrayHeader, verified

# Maximum size of the pickled names and shapes. The name and shape of one array take 200 bytes. torch reads 1 MB in one
# second. In the old format, the search for the end of the pickles takes another second per MB.
_MAX_PICKLE_BYTES, _MAX_OLD_PICKLE_BYTES = 2_000_000, 1_000_000


def open_pth(path):
    """{name: `ArrayHeader`} of the tensors in a file."""
    torch = _torch()
    with open(path, "rb") as file:
        is_zip = file.read(2) == b"PK"
    if is_zip:
        _check_archive(path)
    else:
        _check_pickles(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # Files of MAE and DeiT contain such an object.
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        match = re.search(r"GLOBAL (\S+)", str(error))
        kind = f" ({match.group(1)})" if match else ""
        problem = f"it is damaged, or contains objects{kind} that could run any code"
        raise ValueError(f"torch refuses it: {problem}") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"it contains a {type(loaded).__name__}, not a dictionary of tensors")
    tensors = _tensors(loaded, "", set())
    return verified(path, (_torch_array(name, tensor) for name, tensor in tensors))


def _check_archive(path):
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("its members are compressed, which torch.save never does")
    if any(member.filename.endswith("/data.pkl") and member.file_size > _MAX_PICKLE_BYTES for member in members):
        raise _too_long(_MAX_PICKLE_BYTES)


class _ShortReads(io.BufferedReader):
    """A file that reads at most 1 MB at a time. A damaged length would otherwise be allocated."""

    def read(self, size=-1, /):
        return super().read(min(size, _MAX_OLD_PICKLE_BYTES))


def _check_pickles(path):
    """Checks the size of the old format's five pickles: magic number, version, machine, dictionary, storage names."""
    with open(path, "rb", buffering=0) as raw, _ShortReads(raw) as file:
        for _ in range(5):
            for _, _, position in pickletools.genops(file):
                if position is not None and position > _MAX_OLD_PICKLE_BYTES:
                    raise _too_long(_MAX_OLD_PICKLE_BYTES)


def _too_long(limit):
    return ValueError(f"its names and shapes take more than {limit:,} bytes, which is too many for weights")


def _torch():
    try:
        import torch

        # In older versions, a file could run code in spite of weights_only=True (CVE-2025-32434).
        if torch.__version__ >= (2, 6):
            return torch
    except ImportError:
        pass
    raise ImportError(
        "Loading PyTorch's files needs torch 2.6 or newer. Install it, or convert the file to .safetensors."
    )


def _tensors(tree, prefix, seen):
    """Yields (name, tensor) from nested dictionaries. A dictionary that occurs several times is used once."""
    import torch

    seen.add(id(tree))
    for key, value in tree.items():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, dict) and id(value) not in seen:
            yield from _tensors(value, f"{prefix}{key}/", seen)


def _torch_array(name, tensor):
    dtype = str(tensor.dtype).removeprefix("torch.")
    read = functools.partial(_read_tensor, tensor.detach(), dtype)
    return ArrayHeader(name, tuple(tensor.shape), dtype, tensor.numel() * tensor.element_size(), read)


def _read_tensor(tensor, dtype):
    import torch

    if dtype == "bfloat16":  # NumPy has no bfloat16.
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return np.array(tensor.numpy(), order="C")
