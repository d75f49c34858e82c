"""Damaged, hostile and foreign files are refused. files_test.py tests valid files."""

import json
import os
import pickle
import warnings
import zipfile
import zlib

import h5py
import numpy as np
import pytest

from keras_vit.weights.containers.files import open_arrays
from keras_vit.weights.containers.safetensors import write_safetensors
from tests.weights.refusals import refused, refuses_at_once


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"\n<!DOCTYPE html><html>", "is a web page that was saved instead"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (pickle.dumps({"a": 1}), "is a pickle, which can run any code"),
        (b"\x1f\x8b\x08" + bytes(50), "is a compressed file or a tar archive"),
        (bytes(257) + b"ustar\x0000", "is a compressed file or a tar archive"),
        (b'{\n  "hidden_size": {"a": 12}}', "is JSON, but without the weight_map"),
        (b"[{" * 200_000, "is JSON"),
        (b'{"a": ' + b"[" * 200_000, "cannot be read"),
        (b"\x93NUMPY\x01\x00" + bytes(99), "is a single array without a name"),
        (b"PK\x05\x06" + bytes(18), "is an empty zip archive"),
        (b"PK\x03\x04" + bytes(99), "cannot be read: File is not a zip file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(99), "cannot be read"),
        (b"\x07anything", "is of an unknown format. It begins with b'.*x07anythin'"),
    ],
)
def test_says_what_a_file_seems_to_be(content, match, tmp_path):
    (tmp_path / "a.npz").write_bytes(content)
    refused(tmp_path / "a.npz", match)


def test_says_what_a_path_is(tmp_path):
    refused(tmp_path, "is a folder. Accepted are .npz")
    with pytest.raises(FileNotFoundError, match=r"missing\.npz"):
        open_arrays(tmp_path / "missing.npz")
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", "is no file")
    for name, match in (("model.weights.h5", r"keras\.saving\.load_model"), ("text", "zip archive without arrays")):
        _write_zip(tmp_path / "a.zip", {name: b""})
        refused(tmp_path / "a.zip", match)


def _write_zip(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Duplicate names cause warnings.
        for name, content in members.items() if isinstance(members, dict) else members:
            archive.writestr(name, content)


def _npy(shape, descr="<f4", content=b""):
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


class _Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_pickles_are_never_loaded(tmp_path):
    touched = tmp_path / "touched"
    np.savez(tmp_path / "a.npz", a=np.array([_Payload(touched)], object), b=np.ones(3))
    with open_arrays(tmp_path / "a.npz") as file:
        assert file.dtypes == {"a": "object", "b": "float64"}
        with pytest.raises(ValueError, match="'a' is of type object, which is not supported"):
            file["a"]
    torch = pytest.importorskip("torch")
    for new in (True, False):
        torch.save({"a": _Payload(touched)}, tmp_path / "a.pth", _use_new_zipfile_serialization=new)
        refused(tmp_path / "a.pth", r"contains objects \(\w+\.system\) that could run any code")
    assert not touched.exists()
    torch.load(tmp_path / "a.pth", weights_only=False)
    assert touched.exists()  # The payload works when it is unpickled.


def _write_bomb(path, name, content, file_size=None):
    """Writes a zip archive of 10 MB with one member: `content`, then 10 GiB of zeros."""
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
    refuses_at_once(tmp_path / "inflating.npz", "declare 10,737,418,240 bytes")
    refuses_at_once(tmp_path / "header.npz", "'a.npy' is damaged")
    refuses_at_once(tmp_path / "lying.npz", "Bad CRC-32")
    refuses_at_once(tmp_path / "declaring.npz", "declares 10,737,418,240 bytes of values")
    refuses_at_once(tmp_path / "a.h5", "declare 10,737,418,240 bytes")
    refuses_at_once(tmp_path / "chunk.h5", "declare 2,147,483,648 bytes")
    pytest.importorskip("torch")
    refuses_at_once(tmp_path / "a.pth", "compressed, which torch.save never does")


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ([("a.npy", _npy((1,), content=bytes(4)))] * 2, "two arrays named 'a'"),
        ({"../a.npy": _npy((1,), content=bytes(4))}, r"the array's name '\.\./a' is not accepted"),
        ({"/a.npy": _npy((1,), content=bytes(4))}, "the array's name '/a' is not accepted"),
        ({"a.npy": _npy((1,), content=bytes(4)), "b.txt": b""}, "'b.txt' is not an array"),
        ({"a.npy": b"\x80\x04."}, "'a.npy' is damaged"),
        ({"a.npy": _npy((-1, -1), content=bytes(4))}, r"the shape \(-1, -1\) is impossible"),
        ({"a.npy": _npy((2**32, 2**32), content=bytes(4))}, "declares 73,786,976,294,838,206,464 bytes"),
        ({"a.npy": _npy((0, 2**63))}, "is impossible"),
        ({"a.npy": _npy((1,) * 33, content=bytes(4))}, "is impossible"),
        ({"a.npy": _npy(0)}, "is damaged"),
        ({"a.npy": _npy("-" * 9000 + "1")}, "is damaged"),
        ({"a.npy": _npy((1,), content=bytes(5))}, "declares 4 bytes of values, but contains a different number"),
        ({"a.npy": _npy((1,), content=bytes(4)).replace(b"NUMPY\x01", b"NUMPY\x03")}, r"version \(3, 0\)"),
    ],
)
def test_refuses_npz_that_contradict_themselves(members, match, tmp_path):
    _write_zip(tmp_path / "a.npz", members)
    refused(tmp_path / "a.npz", match)


def test_refuses_values_that_end_early(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", _npy((3,), content=bytes(4)))
        archive.getinfo("a.npy").file_size += 8  # The checksum stays correct.
    refused(tmp_path / "a.npz", "array 'a', cannot be read: it is cut off")


def test_refuses_encrypted_and_oddly_compressed_npz(tmp_path):
    _write_zip(tmp_path / "a.npz", {"a.npy": _npy((1,), content=bytes(4))}, zipfile.ZIP_BZIP2)
    refused(tmp_path / "a.npz", "is encrypted, or compressed in another way")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", _npy((1,), content=bytes(4)))
        archive.getinfo("a.npy").flag_bits |= 1
    refused(tmp_path / "a.npz", "is encrypted, or compressed in another way")


def _save_safetensors(path, **arrays):
    write_safetensors(path, arrays)


def _save_h5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


@pytest.mark.slow
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, _save_safetensors, _save_h5])
def test_refuses_every_cut_and_every_flipped_byte_of_values(save, tmp_path):
    values = np.random.default_rng(0).normal(size=(7, 11)).astype("float32")
    arrays = {"a": values, "b/c": np.arange(5, dtype="float64")}
    save(tmp_path / "good.npz", **arrays)
    content = (tmp_path / "good.npz").read_bytes()
    for length in range(0, len(content), max(3, len(content) // 250)):
        (tmp_path / "cut.npz").write_bytes(content[:length])
        refused(tmp_path / "cut.npz")
    if save in (_save_safetensors, _save_h5):  # These formats have no checksums.
        return
    start = content.index(b"NUMPY") if save is np.savez else 60
    for position in range(start, start + 300, 7):
        (tmp_path / "flipped.npz").write_bytes(
            content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]
        )
        refused(tmp_path / "flipped.npz", "array 'a', cannot be read|'a.npy'")


def _safetensors(header, data=b"", length=None):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data


def _section(begin, end, dtype="F32", shape=(2,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (_safetensors({}, length=2**31), "declares 2,147,483,648 bytes"),
        (_safetensors({}, length=3), "cannot be read: .*header length"),
        (_safetensors({"a": _section(0, 8), "b": _section(4, 12)}, bytes(12)), "cannot be read: .*tensor `b`"),
        (_safetensors({"a": _section(0, 8)}, bytes(9)), "cannot be read: .*not fully covered"),
        (_safetensors({"a": _section(0, 8, shape=(-1, -2))}, bytes(8)), "cannot be read: .*`-1`"),
        (_safetensors({"a": _section(0, 0, shape=(0,) * 10_000)}), "is impossible"),
        (_safetensors({"../a": _section(0, 8)}, bytes(8)), r"name '\.\./a' is not accepted"),
        (_safetensors({"__metadata__": {"a": 1}}), "cannot be read: .*expected a string"),
        (_safetensors(b'{"a": ' + b"[" * 100_000), "cannot be read"),
    ],
)
def test_refuses_safetensors_that_contradict_themselves(content, match, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(content)
    refuses_at_once(tmp_path / "a.safetensors", match)


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
        refused(tmp_path / "a.h5", "'group/a' (is a link|are not)|'group/a/' occurs twice")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = ["text"]
    refused(tmp_path / "a.h5", "'a' is of type object, which is not supported")


def test_refuses_hdf5_that_reads_as_zeros(tmp_path):
    _save_h5(tmp_path / "a.h5", a=np.ones(1000), b=np.ones(1000))
    with open_arrays(tmp_path / "a.h5") as file:
        os.truncate(tmp_path / "a.h5", os.path.getsize(tmp_path / "a.h5") - 4000)
        with pytest.raises(ValueError, match=r"a\.h5, array 'b', cannot be read: its values are not in the file"):
            file["b"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("never_written", (3,), "float32")
        file.create_dataset("none", (0,), "float32")
    with open_arrays(tmp_path / "a.h5") as file:
        assert file["none"].shape == (0,)
        with pytest.raises(ValueError, match="array 'never_written', cannot be read: its values are not in the file"):
            file["never_written"]


def test_refuses_torch_files_without_tensors_and_with_inflated_ones(tmp_path):
    torch = pytest.importorskip("torch")
    circle = {"a": torch.ones(3)}
    circle["b"] = circle
    torch.save(circle, tmp_path / "a.pth")
    with open_arrays(tmp_path / "a.pth") as file:
        assert file.shapes == {"a": (3,)}
    torch.save({"a": torch.ones(1).expand(2**33)}, tmp_path / "a.pth")
    refuses_at_once(tmp_path / "a.pth", "declare 34,359,738,368 bytes")
    many = [[]] * 3_000_000  # One or two bytes per list.
    for new, limit in ((True, "2,000,000"), (False, "1,000,000")):
        torch.save(many, tmp_path / "a.pth", _use_new_zipfile_serialization=new)
        refused(tmp_path / "a.pth", f"its names and shapes take more than {limit} bytes")
    torch.save([torch.ones(3)], tmp_path / "a.pth")
    refused(tmp_path / "a.pth", "contains a list, not a dictionary of tensors")
    torch.save({"a": {"b": torch.ones(3)}, "a/b": torch.ones(3)}, tmp_path / "a.pth")
    refused(tmp_path / "a.pth", "two arrays named 'a/b'")
    content = (tmp_path / "a.pth").read_bytes()
    for length in range(0, len(content), 97):
        (tmp_path / "a.pth").write_bytes(content[:length])
        refused(tmp_path / "a.pth")
