"""Files that would take much time or memory in proportion to their size if they were not refused."""

import functools
import json
import os
import zipfile

import h5py
import numpy as np

from keras_vit.weights.containers.files import open_arrays
from keras_vit.weights.containers.safetensors import write_safetensors

_GRID = {"grid_size": [2, 3]}


def write_hostile_files(folder, saved):
    """Writes the files. Each has at most 10 MB, except one with a larger header.

    Args:
        folder: `pathlib.Path` of the folder to write to.
        saved: {format: path of the files of a small model}. They are not changed.

    Returns:
        {name: (path, arguments of `from_pretrained`, regular expression of the message)}
    """
    with open_arrays(saved["google"]) as file:
        google = dict(file)
    files = {}
    for name, (write, match, arguments) in _FILES.items():
        path = folder / name
        write(path, google)
        files[name] = path, arguments, match
    for name, (format, file, change, match) in _PRESETS.items():
        path = folder / name
        path.mkdir()
        for original in saved[format].iterdir():
            os.link(original, path / original.name)
        content = (path / file).read_text()
        (path / file).unlink()
        (path / file).write_text(change(content))
        files[name] = path, {}, match
    return files


def _compressed(path, arrays):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(array))


def _stacked(path, google):
    _compressed(path, google | {"Transformer/encoderblock/LayerNorm_0/scale": np.zeros((12_000_000, 1), "uint8")})


def _blocks(path, google, numbers, without=()):
    """A file with copies of the second block under other numbers."""
    block = {name: array for name, array in google.items() if "encoderblock_1/" in name}
    copies = {
        name.replace("encoderblock_1/", f"encoderblock_{number}/"): array
        for number in numbers
        for name, array in block.items()
    }
    _compressed(path, {name: array for name, array in (google | copies).items() if name not in without})


def _units(path, google):
    """A file with thousands of unknown names, which are compared with a block's names to find suggestions."""
    google = {name: array for name, array in google.items() if "encoderblock_1/M" not in name}
    names = [f"block{1 + i % 99}/unit{1 + i // 99}/conv1/kernel" for i in range(9_900)]
    write_safetensors(path, google | dict.fromkeys(names, np.zeros(1, "float32")))


def _wide(path, google):
    """A file without a position table, so that positions as wide as the tokens are computed."""
    google = {name: array for name, array in google.items() if "posembed" not in name}
    kernel = np.zeros((1, 1, 1, 4_000_000), "float16")
    query = np.zeros((4_000_000, 1, 1), "float16")
    block = "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel"
    _compressed(path, google | {"embedding/kernel": kernel, block: query})


def _large_head(path, google):
    """A head with 4,000,000 classes. Its kernel does not fit the token width of 12."""
    _compressed(path, google | {"head/kernel": np.zeros((1, 4_000_000), "float32")})


def _members(path, google, count):
    header = b"{'descr':'<f4','fortran_order':False,'shape':(1,)}"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(4)
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(count):
            archive.writestr(f"{number}.npy", content)


def _safetensors(path, google, header, length=None):
    with open(path, "wb") as file:
        file.write((length or len(header)).to_bytes(8, "little") + header)
    os.truncate(path, 8 + (length or len(header)))


def _inflating(path, google):
    _compressed(path, google | {"head/kernel": np.zeros((12, 1_500_000), "float16")})


def _datasets(path, google):
    with h5py.File(path, "w", libver="latest") as file:
        first = file.create_dataset("0", (1,), "float32")
        for number in range(1, 10_001):
            file[str(number)] = first


_NORM = "Transformer/encoder_norm/scale"
_FILES = {
    "stacked.npz": (_stacked, "has 12,000,000 blocks", _GRID),
    "gap.npz": (functools.partial(_blocks, numbers=[20_000]), "has 20,001 blocks", _GRID),
    "deep.npz": (functools.partial(_blocks, numbers=range(100), without=[_NORM]), "missing: encoder_norm/gamma", _GRID),
    "units.safetensors": (_units, "missing: encoder_block_1/attention/query/kernel.*and 98.. more", _GRID),
    "wide.npz": (_wide, "hidden_dim must be at most 1,000,000. Received: 4000000", {}),
    "large_head.npz": (_large_head, "another shape: predictions/kernel", _GRID),
    "inflating.npz": (_inflating, "arrays declare", _GRID),
    "tiny.npz": (functools.partial(_members, count=10_001), "more than 10,000 arrays", {}),
    "header.safetensors": (
        functools.partial(_safetensors, header=b'{"a":[1', length=90_000_000),
        "declares 90,000,000 bytes, but at most 10,000,000 are accepted",
        {},
    ),
    "lists.safetensors": (
        functools.partial(_safetensors, header=b'{"a":[' + b"[]," * 3_300_000 + b"1]}"),
        "cannot be read",
        {},
    ),
    "names.safetensors": (
        functools.partial(
            _safetensors,
            header=json.dumps(
                {str(i): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(150_000)}
            ).encode(),
        ),
        "more than 10,000 arrays",
        {},
    ),
    "datasets.h5": (_datasets, "more than 10,000 arrays and groups", {}),
}


def _changed(section, **changes):
    def change(content):
        content = json.loads(content)
        content[section].update(changes)
        return json.dumps(content)

    return change


_PRESETS = {
    "wide_config": ("keras_hub", "config.json", _changed("config", mlp_dim=30_000_000), "it contains mlp_dim=30000000"),
    "deep_config": ("keras_hub", "config.json", _changed("config", num_layers=20_000), "it contains num_layers=20000"),
    "large_config": (
        "keras_hub",
        "config.json",
        _changed("config", image_shape=[60_000, 60_000, 3]),
        r"it contains image_shape=\[60000, 60000, 3\]",
    ),
    "classes_config": (
        "keras_hub",
        "task.json",
        _changed("config", num_classes=10**9),
        "it contains num_classes=1000000000",
    ),
    "huge_config": (
        "huggingface",
        "config.json",
        lambda content: content[:-1] + ', "image_size": 1000000000}',
        "at most",
    ),
    "nested_config": ("huggingface", "config.json", lambda content: '{"a":' * 100_000, "is not a configuration"),
    "nested_lists": ("huggingface", "config.json", lambda content: "[" * 5_000_000, "is not a configuration"),
}
