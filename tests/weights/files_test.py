import argparse
import json
import os
import pickle
import time
import tracemalloc
import warnings
import zipfile
import zlib

import h5py
import numpy as np
import pytest

from keras_vit.weights.files import open_arrays, write_npz, write_safetensors

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
        # Closed, and still there.
        assert read[name].flags.owndata or read[name].base.flags.owndata


def _refused(path, match=None):
    with pytest.raises(ValueError, match=match) as error:
        dict(open_arrays(path))
    assert str(path) in str(error.value)


# Files that others write.


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_numpy(save, tmp_path):
    save(tmp_path / "a.npz", **_arrays())
    os.rename(tmp_path / "a.npz", tmp_path / "a.pth")  # The ending says nothing.
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
    library = pytest.importorskip("safetensors.numpy")
    arrays = {name: np.asarray(array) for name, array in _arrays().items()}
    library.save_file(arrays, tmp_path / "a.npz", metadata={"format": "np"})
    _check(tmp_path / "a.npz", "safetensors", arrays, same_order=False)
    with open_arrays(tmp_path / "a.npz") as file:
        assert file.metadata == {"format": "np"}


def test_reads_bfloat16_of_safetensors_and_lists_float8(tmp_path):
    torch, library = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    tensors = {"a": torch.from_numpy(BFLOAT16_VALUES).bfloat16(), "b": torch.ones(3).to(torch.float8_e4m3fn)}
    library.save_file(tensors, tmp_path / "a.safetensors")
    with open_arrays(tmp_path / "a.safetensors") as file:
        assert file.dtypes == {"a": "bfloat16", "b": "float8_e4m3fn"}
        np.testing.assert_array_equal(file["a"].view("uint32"), BFLOAT16_VALUES.view("uint32"))
        with pytest.raises(ValueError, match="'b' is of type float8_e4m3fn, which is not read"):
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
    np.testing.assert_array_equal(read["model/patch_embed.proj.weight"], kernel.numpy().T[1:4])
    np.testing.assert_array_equal(read["model/norm/weight"], np.ones(3))
    np.testing.assert_array_equal(read["bits"].view("uint32"), BFLOAT16_VALUES.T.copy().view("uint32"))
    assert read["0"] == 2


def test_torch_is_asked_for_by_name(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match=r"install it, or convert the file to \.safetensors"):
        open_arrays(tmp_path / "a.pth")


def test_reads_shards(tmp_path):
    write_safetensors(tmp_path / "model-1.safetensors", {"a": np.arange(3.0), "b": np.ones(2)}, {"format": "pt"})
    write_safetensors(tmp_path / "model-2.safetensors", {"c": np.arange(5.0)})
    index = tmp_path / "model.safetensors.index.json"
    shards = {"c": "model-2.safetensors", "a": "model-1.safetensors", "b": "model-1.safetensors"}
    index.write_text(json.dumps({"metadata": {"total_size": 80}, "weight_map": shards}, indent=2))
    _check(index, "safetensors", {"c": np.arange(5.0), "a": np.arange(3.0), "b": np.ones(2)})
    index.write_text(json.dumps({"weight_map": {**shards, "d": "model-2.safetensors"}}))
    _refused(index, "its shards lack 1 arrays, the first 'd'")
    for shard in ("../model-1.safetensors", "/etc/passwd", "..", "a\\b", "C:b", "", "a\n", 3):
        index.write_text(json.dumps({"weight_map": {"a": shard}}))
        _refused(index, "no plain file name|without the weight_map")
    for other in (index.name, "a.npz"):  # An index that names itself, and another format.
        np.savez(tmp_path / "a.npz", a=1.0)
        index.write_text(json.dumps({"weight_map": {"a": other}}))
        _refused(index, "is no safetensors file")


# Files that we write.


def test_npz_is_what_numpy_writes(tmp_path):
    write_npz(tmp_path / "ours.npz", _arrays())
    np.savez(tmp_path / "theirs.npz", **_arrays())
    assert (tmp_path / "ours.npz").read_bytes() == (tmp_path / "theirs.npz").read_bytes()
    write_npz(tmp_path / "ours.npz", {"file": np.arange(6.0).reshape(2, 3).T})  # Replaced; a name savez cannot take.
    with np.load(tmp_path / "ours.npz") as file:
        np.testing.assert_array_equal(file["file"], np.arange(6.0).reshape(2, 3).T)
        assert file["file"].flags.c_contiguous
    assert sorted(os.listdir(tmp_path)) == ["ours.npz", "theirs.npz"]


def test_safetensors_is_what_the_library_reads(tmp_path):
    library = pytest.importorskip("safetensors")
    arrays = {**_arrays(), "big": np.arange(4, dtype=">f8"), "view": np.arange(6.0).reshape(2, 3).T}
    write_safetensors(tmp_path / "a.safetensors", arrays, {"format": "pt", "ü": "ß"})
    expected = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in arrays.items()}
    _check(tmp_path / "a.safetensors", "safetensors", expected)
    with library.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "ü": "ß"}
        assert set(file.keys()) == set(arrays)
        for name, array in expected.items():
            assert file.get_tensor(name).dtype == array.dtype
            np.testing.assert_array_equal(file.get_tensor(name), array)
    torch_library = pytest.importorskip("safetensors.torch")
    for name, tensor in torch_library.load_file(tmp_path / "a.safetensors").items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


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
    with pytest.raises(ValueError, match="ccepted "):
        write(tmp_path / "a", {"good": np.ones(2), name: value})
    assert os.listdir(tmp_path) == ["a"]
    _check(tmp_path / "a", "npz" if write is write_npz else "safetensors", {"first": np.ones(3)})


def test_safetensors_refuses_what_the_format_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match="from text to text"):
        write_safetensors(tmp_path / "a", {}, {"epoch": 3})
    for arrays in ({"__metadata__": np.ones(3)}, {"a": np.array(["text"])}):
        with pytest.raises(ValueError, match="safetensors cannot hold the array '"):
            write_safetensors(tmp_path / "a", arrays)
    assert not os.listdir(tmp_path)


# The mapping.


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


# Files that are something else, damaged, or hostile.


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"\n<!DOCTYPE html><html>", "is a web page that was saved instead"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (pickle.dumps({"a": 1}), "is a pickle, which may run any code"),
        (b"\x1f\x8b\x08" + bytes(50), "is a compressed file or a tar archive"),
        (bytes(257) + b"ustar\x0000", "is a compressed file or a tar archive"),
        (b'{\n  "hidden_size": {"a": 12}}', "is JSON, but without the weight_map"),
        (b"[{" * 200_000, "is JSON"),
        (b'{"a": ' + b"[" * 200_000, "cannot be read"),
        (b"\x93NUMPY\x01\x00" + bytes(99), "is a single array without a name"),
        (b"PK\x05\x06" + bytes(18), "is an empty zip archive"),
        (b"PK\x03\x04" + bytes(99), "cannot be read: File is not a zip file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(99), "cannot be read"),
        (b"\x07anything", "is of an unknown format; it begins with b'.*x07anythin'"),
    ],
)
def test_says_what_a_file_seems_to_be(content, match, tmp_path):
    (tmp_path / "a.npz").write_bytes(content)
    _refused(tmp_path / "a.npz", match)


def test_says_what_a_path_is(tmp_path):
    _refused(tmp_path, "is a folder. Accepted are .npz")
    with pytest.raises(FileNotFoundError, match=r"missing\.npz"):
        open_arrays(tmp_path / "missing.npz")
    os.mkfifo(tmp_path / "fifo")
    _refused(tmp_path / "fifo", "is no file")
    for name, match in (("model.weights.h5", r"keras\.saving\.load_model"), ("text", "zip archive without arrays")):
        _write_zip(tmp_path / "a.zip", {name: b""})
        _refused(tmp_path / "a.zip", match)


def _write_zip(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of names that occur twice.
        for name, content in members.items() if isinstance(members, dict) else members:
            archive.writestr(name, content)


def _npy(shape, descr="<f4", content=b""):
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


class _Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_pickles_are_never_loaded(tmp_path):
    touched = tmp_path / "touched"
    np.savez(tmp_path / "a.npz", a=np.array([_Payload(touched)], object), b=np.ones(3))
    with open_arrays(tmp_path / "a.npz") as file:
        assert file.dtypes == {"a": "object", "b": "float64"}
        with pytest.raises(ValueError, match="'a' is of type object, which is not read"):
            file["a"]
    torch = pytest.importorskip("torch")
    for new in (True, False):
        torch.save({"a": _Payload(touched)}, tmp_path / "a.pth", _use_new_zipfile_serialization=new)
        _refused(tmp_path / "a.pth", r"holds objects \(\w+\.system\) that could run any code")
    assert not touched.exists()
    torch.load(tmp_path / "a.pth", weights_only=False)
    assert touched.exists()  # The payload works.


def _write_bomb(path, name, content, file_size=None):
    """A zip archive with one member: `content`, then 10 GiB of zeros, in 10 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, start + 640 * zeros + packer.flush())
        member = archive.getinfo(name)
        member.compress_type = zipfile.ZIP_DEFLATED
        member.file_size = len(content) + 640 * 2**24 if file_size is None else file_size


def test_bombs_are_refused_at_once(tmp_path):
    header = _npy((10 * 2**28,))
    _write_bomb(tmp_path / "inflating.npz", "a.npy", header)
    _write_bomb(tmp_path / "header.npz", "a.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f")
    _write_bomb(tmp_path / "lying.npz", "a.npy", _npy((3,)), len(_npy((3,))) + 12)
    _write_bomb(tmp_path / "a.pth", "archive/data.pkl", b"")
    _write_zip(tmp_path / "declaring.npz", {"a.npy": header})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (10 * 2**28,), "float32", chunks=(1000,), compression="gzip")
    with h5py.File(tmp_path / "chunk.h5", "w") as file:
        file.create_dataset("a", (3,), "float32", chunks=(2**29,), maxshape=(None,), compression="gzip")
    _refuses_at_once(tmp_path / "inflating.npz", "declare 10,737,418,240 bytes")
    _refuses_at_once(tmp_path / "header.npz", "'a.npy' is damaged")
    _refuses_at_once(tmp_path / "lying.npz", "Bad CRC-32")
    _refuses_at_once(tmp_path / "declaring.npz", "declares 10,737,418,240 bytes of values")
    _refuses_at_once(tmp_path / "a.h5", "declare 10,737,418,240 bytes")
    _refuses_at_once(tmp_path / "chunk.h5", "declare 2,147,483,648 bytes")
    pytest.importorskip("torch")
    _refuses_at_once(tmp_path / "a.pth", "compressed, which torch.save never does")


def _refuses_at_once(path, match):
    start = time.process_time()
    tracemalloc.start()
    _refused(path, match)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ([("a.npy", _npy((1,), content=bytes(4)))] * 2, "two arrays named 'a'"),
        ({"../a.npy": _npy((1,), content=bytes(4))}, r"the array's name '\.\./a' is refused"),
        ({"/a.npy": _npy((1,), content=bytes(4))}, "the array's name '/a' is refused"),
        ({"a.npy": _npy((1,), content=bytes(4)), "b.txt": b""}, "'b.txt' is no array"),
        ({"a.npy": b"\x80\x04."}, "'a.npy' is damaged"),
        ({"a.npy": _npy((-1, -1), content=bytes(4))}, r"the shape \(-1, -1\) is impossible"),
        ({"a.npy": _npy((2**32, 2**32), content=bytes(4))}, "declares 73,786,976,294,838,206,464 bytes"),
        ({"a.npy": _npy((0, 2**63))}, "is impossible"),
        ({"a.npy": _npy((1,) * 33, content=bytes(4))}, "is impossible"),
        ({"a.npy": _npy(0)}, "is damaged"),
        ({"a.npy": _npy("-" * 9000 + "1")}, "is damaged"),
        ({"a.npy": _npy("(" * 9000)}, "is damaged"),
        ({"a.npy": _npy((1,), content=bytes(5))}, "declares 4 bytes of values and has another number"),
        ({"a.npy": _npy((1,), content=bytes(3))}, "declares 4 bytes of values and has another number"),
        ({"a.npy": _npy((1,), content=bytes(4)).replace(b"NUMPY\x01", b"NUMPY\x03")}, r"version \(3, 0\)"),
    ],
)
def test_refuses_npz_that_contradict_themselves(members, match, tmp_path):
    _write_zip(tmp_path / "a.npz", members)
    _refused(tmp_path / "a.npz", match)


def test_refuses_encrypted_and_oddly_compressed_npz(tmp_path):
    _write_zip(tmp_path / "a.npz", {"a.npy": _npy((1,), content=bytes(4))}, zipfile.ZIP_BZIP2)
    _refused(tmp_path / "a.npz", "is encrypted, or compressed in another way")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", _npy((1,), content=bytes(4)))
        archive.getinfo("a.npy").flag_bits |= 1
    _refused(tmp_path / "a.npz", "is encrypted, or compressed in another way")


def _save_safetensors(path, **arrays):
    write_safetensors(path, arrays)


def _save_h5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, _save_safetensors, _save_h5])
def test_refuses_every_cut_and_every_flipped_byte_of_values(save, tmp_path):
    values = np.random.default_rng(0).normal(size=(7, 11)).astype("float32")
    arrays = {"a": values, "b/c": np.arange(5, dtype="float64")}
    save(tmp_path / "good.npz", **arrays)
    content = (tmp_path / "good.npz").read_bytes()
    for length in range(0, len(content), 3):
        (tmp_path / "cut.npz").write_bytes(content[:length])
        _refused(tmp_path / "cut.npz")
    if save in (_save_safetensors, _save_h5):  # Without checksums.
        return
    start = content.index(b"NUMPY") if save is np.savez else 60
    for position in range(start, start + 300, 7):
        (tmp_path / "flipped.npz").write_bytes(
            content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]
        )
        _refused(tmp_path / "flipped.npz", "array 'a', cannot be read|'a.npy'")


def _safetensors(header, data=b"", length=None):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data


def _section(begin, end, dtype="F32", shape=(2,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (_safetensors({}, length=2**31), "declares 2,147,483,648 bytes"),
        (_safetensors({}, length=2**64 - 1), "declares 18,446,744,073,709,551,615 bytes"),
        (_safetensors({}, length=3), "declares 3 bytes, of 2 in the file"),
        (_safetensors({"a": _section(0, 8), "b": _section(4, 12)}, bytes(12)), "values of 'b' overlap"),
        (_safetensors({"a": _section(0, 8), "b": _section(0, 8)}, bytes(8)), "values of 'b' overlap"),
        (_safetensors({"a": _section(4, 12)}, bytes(12)), "values of 'a' overlap with others, or leave a gap"),
        (_safetensors({"a": _section(0, 8)}, bytes(7)), "take 8 bytes, 7 are there"),
        (_safetensors({"a": _section(0, 8)}, bytes(9)), "take 8 bytes, 9 are there"),
        (_safetensors({"a": _section(-8, 0)}), "contradicts itself, or has an unknown type, in 'a'"),
        (_safetensors({"a": _section(0, 9)}, bytes(9)), "contradicts itself"),
        (_safetensors({"a": _section(0, 8, dtype="F31")}, bytes(8)), "unknown type, in 'a'.*F31"),
        (_safetensors({"a": _section(0, 8, shape=(-1, -2))}, bytes(8)), "is impossible"),
        (_safetensors({"a": _section(0, 4, shape=(True,))}, bytes(4)), "is impossible"),
        (_safetensors({"a": _section(0, 0, shape=(0,) * 10_000)}), "is impossible"),
        (_safetensors({"a": [1]}), "contradicts itself"),
        (_safetensors({"../a": _section(0, 8)}, bytes(8)), r"name '\.\./a' is refused"),
        (_safetensors({"__metadata__": {"a": 1}}), "__metadata__ is no dictionary of text"),
        (_safetensors(b'{"a": 1, "a": 2}'), "holds a name twice"),
        (_safetensors(b'{"a": ' + b"[" * 100_000), "cannot be read"),
        (_safetensors(b'{"\xff": 1}'), "cannot be read"),
    ],
)
def test_refuses_safetensors_that_contradict_themselves(content, match, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(content)
    _refuses_at_once(tmp_path / "a.safetensors", match)


def test_refuses_hdf5_that_leads_elsewhere(tmp_path):
    def link(file):
        file["group/a"] = h5py.ExternalLink("other.h5", "/a")

    def soft_link(file):
        file["group/a"] = h5py.SoftLink("/b")

    def circle(file):
        file["group/a"] = file.create_group("group")

    def external(file):
        file.create_dataset("group/a", (3,), "float32", external=[("/etc/passwd", 0, 12)])

    def virtual(file):
        layout = h5py.VirtualLayout((3,), "float64")
        layout[:] = h5py.VirtualSource("other.h5", "a", (3,))
        file.create_virtual_dataset("group/a", layout)

    def empty(file):
        file["group/a"] = h5py.Empty("float32")

    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = np.ones(3)
    for make in (link, soft_link, circle, external, virtual, empty):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            make(file)
        _refused(tmp_path / "a.h5", "'group/a' (is a link|are not)|'group/a/' is linked to twice")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = ["text"]
    _refused(tmp_path / "a.h5", "'a' is of type object, which is not read")


def test_refuses_torch_files_without_tensors_and_with_inflated_ones(tmp_path):
    torch = pytest.importorskip("torch")
    circle = {"a": torch.ones(3)}
    circle["b"] = circle
    torch.save(circle, tmp_path / "a.pth")
    with open_arrays(tmp_path / "a.pth") as file:
        assert file.shapes == {"a": (3,)}
    torch.save({"a": torch.ones(1).expand(2**33)}, tmp_path / "a.pth")
    _refuses_at_once(tmp_path / "a.pth", "declare 34,359,738,368 bytes")
    torch.save([torch.ones(3)], tmp_path / "a.pth")
    _refused(tmp_path / "a.pth", "holds a list, not a dictionary of tensors")
    torch.save({"a": {"b": torch.ones(3)}, "a/b": torch.ones(3)}, tmp_path / "a.pth")
    _refused(tmp_path / "a.pth", "two arrays named 'a/b'")
    content = (tmp_path / "a.pth").read_bytes()
    for length in range(0, len(content), 97):
        (tmp_path / "a.pth").write_bytes(content[:length])
        _refused(tmp_path / "a.pth")
