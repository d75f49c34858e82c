import argparse
import json
import os
import sys
import tracemalloc
import zipfile

import h5py
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.weights.containers.files import open_arrays
from keras_vit.weights.containers.npz import write_npz
from keras_vit.weights.containers.safetensors import write_safetensors
from tests.weights.refusals import refused, refuses_at_once

BFLOAT16_BITS = np.array([[0x3F80, 0xC049], [0x7F80, 0x0001], [0x8000, 0x4000]], np.uint16)
BFLOAT16_VALUES = np.array([[1, -3.140625], [np.inf, 2.0**-133], [-0.0, 2]], np.float32)


def _arrays():
    rng = np.random.default_rng(0)
    return {
        "Transformer/encoderblock_0/kernel": rng.normal(size=(3, 5, 2)).astype("float32"),
        "odd": rng.normal(size=3).astype("float16"),
        "cls": rng.normal(size=(7, 1)),
        "scalar": np.float32(2.5),
        "none": np.zeros((0, 4), "float32"),
        "step": np.array([3, -(2**40)]),
        "mask": np.array([True, False, True]),
    }


def _check(path, container, expected, same_order=True):
    with open_arrays(path) as file:
        assert (file.path, file.container) == (str(path), container)
        assert list(file) == list(expected) if same_order else set(file) == set(expected)
        assert file.shapes == {name: np.shape(array) for name, array in expected.items()}
        assert file.dtypes == {name: array.dtype.name for name, array in expected.items()}
        read = dict(file)
    for name, array in expected.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
        assert _owns_its_values(read[name])


def _owns_its_values(array):
    """Whether the array keeps no memory except its own values alive."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    owner = array.base.obj if isinstance(array.base, memoryview) else None
    return array.flags.owndata or (isinstance(owner, bytearray) and len(owner) == array.nbytes)


# Files of other programs.


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_numpy(save, tmp_path):
    save(tmp_path / "a.npz", **_arrays())
    os.rename(tmp_path / "a.npz", tmp_path / "a.pth")  # The format is detected by the content, not by the suffix.
    _check(tmp_path / "a.pth", "npz", _arrays())


def test_reads_numpy_in_fortran_order_and_big_endian(tmp_path):
    array = np.arange(30.0).reshape(2, 3, 5)
    np.savez(tmp_path / "a.npz", fortran=np.asfortranarray(array), big=array.astype(">f4"))
    _check(tmp_path / "a.npz", "npz", {"fortran": array, "big": array.astype("float32")})


def test_reads_bfloat16_as_numpy_stores_it(tmp_path):
    np.savez(tmp_path / "a.npz", a=BFLOAT16_BITS.view("V2"), scalar=BFLOAT16_BITS[0, 1].view("V2"))
    with open_arrays(tmp_path / "a.npz") as file:
        assert file.dtypes == {"a": "bfloat16", "scalar": "bfloat16"}
        assert file["a"].dtype == file["scalar"].dtype == np.float32
        np.testing.assert_array_equal(file["a"].view("uint32"), BFLOAT16_VALUES.view("uint32"))
        assert file["scalar"] == np.float32(-3.140625)


def test_reads_safetensors(tmp_path):
    arrays = {name: np.asarray(array) for name, array in _arrays().items()}
    safetensors.numpy.save_file(arrays, tmp_path / "a.npz", metadata={"format": "np"})
    _check(tmp_path / "a.npz", "safetensors", arrays, same_order=False)
    with open_arrays(tmp_path / "a.npz") as file:
        assert file.metadata == {"format": "np"}


def test_reads_bfloat16_of_safetensors_and_lists_float8(tmp_path):
    torch, library = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    tensors = {"a": torch.from_numpy(BFLOAT16_VALUES).bfloat16(), "b": torch.ones(3).to(torch.float8_e4m3fn)}
    library.save_file(tensors, tmp_path / "a.safetensors")
    with open_arrays(tmp_path / "a.safetensors") as file:
        assert file.dtypes == {"a": "bfloat16", "b": "F8_E4M3"}
        np.testing.assert_array_equal(file["a"].view("uint32"), BFLOAT16_VALUES.view("uint32"))
        with pytest.raises(ValueError, match="'b' is of type F8_E4M3, which is not supported"):
            file["b"]


def test_reads_hdf5(tmp_path):
    arrays = {**_arrays(), "layer/vars/0": np.arange(6.0).reshape(2, 3)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file.create_dataset("packed", data=np.arange(1000.0), chunks=(300,), compression="gzip")
    _check(tmp_path / "a.h5", "h5", arrays | {"packed": np.arange(1000.0)}, same_order=False)


@pytest.mark.parametrize("new", [True, False])
def test_reads_torch(new, tmp_path):
    torch = pytest.importorskip("torch")
    kernel = torch.arange(30, dtype=torch.float32).reshape(5, 6)
    tree = {
        "model": {"patch_embed.proj.weight": kernel.T[1:4], "norm": {"weight": torch.nn.Parameter(torch.ones(3))}},
        "args": argparse.Namespace(rate=0.1),
        "epoch": 3,
        0: torch.tensor(2, dtype=torch.int64),
        "bits": torch.from_numpy(BFLOAT16_VALUES).bfloat16().T,
    }
    tree["model"]["again"] = tree["model"]
    torch.save(tree, tmp_path / "a", _use_new_zipfile_serialization=new)
    with open_arrays(tmp_path / "a") as file:
        assert file.container == "pth"
        assert file.dtypes == {
            "model/patch_embed.proj.weight": "float32",
            "model/norm/weight": "float32",
            "0": "int64",
            "bits": "bfloat16",
        }
        read = dict(file)
    assert all(_owns_its_values(array) for array in read.values())
    np.testing.assert_array_equal(read["model/patch_embed.proj.weight"], kernel.numpy().T[1:4])
    np.testing.assert_array_equal(read["model/norm/weight"], np.ones(3))
    np.testing.assert_array_equal(read["bits"].view("uint32"), BFLOAT16_VALUES.T.copy().view("uint32"))
    assert read["0"] == 2


def test_torch_is_asked_for_by_name(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"Install it, or convert the file to \.safetensors"):
        open_arrays(tmp_path / "a.pth")


def test_torch_must_be_new_enough(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pth")
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.5.1"))
    with pytest.raises(ImportError, match=r"needs torch 2\.6 or newer"):
        open_arrays(tmp_path / "a.pth")


def test_reads_shards(tmp_path):
    write_safetensors(tmp_path / "model-1.safetensors", {"a": np.arange(3.0), "b": np.ones(2)}, {"format": "pt"})
    write_safetensors(tmp_path / "model-2.safetensors", {"c": np.arange(5.0)})
    index = tmp_path / "model.safetensors.index.json"
    shards = {"c": "model-2.safetensors", "a": "model-1.safetensors", "b": "model-1.safetensors"}
    index.write_text(json.dumps({"metadata": {"total_size": 80}, "weight_map": shards}, indent=2))
    _check(index, "safetensors", {"c": np.arange(5.0), "a": np.arange(3.0), "b": np.ones(2)})
    index.write_text(json.dumps({"weight_map": {**shards, "d": "model-2.safetensors"}}))
    refused(index, "1 of its arrays are missing in its shards, such as 'd'")
    for shard in ("../model-1.safetensors", "/etc/passwd", "..", "a\\b", "C:b", "", "a\n", 3):
        index.write_text(json.dumps({"weight_map": {"a": shard}}))
        refused(index, "not a plain file name|without the weight_map")
    os.truncate(index, 2**31)
    refuses_at_once(index, "JSON of more than 10,000,000 bytes")
    for other in (index.name, "a.npz"):  # An index that names itself, and a file of another format.
        np.savez(tmp_path / "a.npz", a=1.0)
        index.write_text(json.dumps({"weight_map": {"a": other}}))
        refused(index, "is not a safetensors file")


# Files of this package.


def test_npz_is_what_numpy_writes(tmp_path):
    write_npz(tmp_path / "ours.npz", _arrays())
    np.savez(tmp_path / "theirs.npz", **_arrays())
    assert (tmp_path / "ours.npz").read_bytes() == (tmp_path / "theirs.npz").read_bytes()
    write_npz(tmp_path / "ours.npz", {"file": np.arange(6.0).reshape(2, 3).T})  # `savez` cannot write this name.
    with np.load(tmp_path / "ours.npz") as file:
        np.testing.assert_array_equal(file["file"], np.arange(6.0).reshape(2, 3).T)
        assert file["file"].flags.c_contiguous
    assert sorted(os.listdir(tmp_path)) == ["ours.npz", "theirs.npz"]


def test_safetensors_is_written_as_it_is(tmp_path):
    arrays = {**_arrays(), "big": np.arange(4, dtype=">f8"), "view": np.arange(6.0).reshape(2, 3).T}
    write_safetensors(tmp_path / "a.safetensors", arrays, {"format": "pt", "ü": "ß"})
    expected = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in arrays.items()}
    _check(tmp_path / "a.safetensors", "safetensors", expected, same_order=False)
    with open_arrays(tmp_path / "a.safetensors") as file:
        assert file.metadata == {"format": "pt", "ü": "ß"}


def test_bfloat16_is_written_as_it_is(tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    for write in (write_npz, write_safetensors):
        write(tmp_path / "a", {"a": BFLOAT16_VALUES.astype(bfloat16)})
        with open_arrays(tmp_path / "a") as file:
            assert file.dtypes == {"a": "bfloat16"}
            np.testing.assert_array_equal(file["a"].view("uint32"), BFLOAT16_VALUES.view("uint32"))


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
@pytest.mark.parametrize(
    ("name", "value"), [("a", [{}]), ("../a", 1.0), ("/a", 1.0), ("a\\b", 1.0), ("", 1.0), (3, 1.0)]
)
def test_writes_all_or_nothing(write, name, value, tmp_path):
    write(tmp_path / "a", {"first": np.ones(3)})
    with pytest.raises(ValueError, match="ccepted"):
        write(tmp_path / "a", {"good": np.ones(2), name: value})
    assert os.listdir(tmp_path) == ["a"]
    _check(tmp_path / "a", "npz" if write is write_npz else "safetensors", {"first": np.ones(3)})


def test_safetensors_refuses_what_the_format_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match="from text to text"):
        write_safetensors(tmp_path / "a", {}, {"epoch": 3})
    for arrays in ({"__metadata__": np.ones(3)}, {"a": np.array(["text"])}):
        with pytest.raises(ValueError, match="safetensors cannot store the array '"):
            write_safetensors(tmp_path / "a", arrays)
    assert not os.listdir(tmp_path)


# The mapping of names to arrays.


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_reads_no_more_than_is_asked_for(write, tmp_path):
    write(tmp_path / "a.npz", {"a": np.zeros(4_000_000, "float32"), "b": np.ones((1000, 2000), "float32")})
    tracemalloc.start()
    with open_arrays(tmp_path / "a.npz") as file:
        assert "a" in file
        assert "c" not in file
        assert len(file) == 2
        assert tracemalloc.get_traced_memory()[1] < 1e6
        array = file["a"]
        assert 16e6 <= tracemalloc.get_traced_memory()[1] < 20e6
        with pytest.raises(KeyError, match="c"):
            file["c"]
    tracemalloc.stop()
    with pytest.raises(ValueError, match="is closed"):
        file["b"]
    assert not array.any()
