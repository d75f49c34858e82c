"""Photographs with separate masks: pairs, splits, names, skipped files and errors."""

import itertools
import os
import struct
import zlib

import numpy as np
import PIL.Image
import pytest

from training.data.masks import encode_png
from training.data.sets.mask_folder import read_mask_folder
from training.errors import InputError


def write_pairs(folder, names, size=(6, 9), values=(0, 1)):
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        PIL.Image.new("RGB", size[::-1], (12 * number, 80, 90)).save(folder / "images" / f"{name}.jpg")
        mask = np.resize(np.array(values, "uint8"), size)
        (folder / "masks" / f"{name}.png").write_bytes(encode_png(mask))


def stems(pairs):
    return [image.rpartition("/")[2].partition(".")[0] for image, _ in pairs]


def test_pairs_are_split_by_their_names(tmp_path):
    names = [f"{i:02}" for i in range(20)]
    write_pairs(tmp_path, names, values=(0, 3, 255))
    found = read_mask_folder(tmp_path, 0.2, 0.25)
    assert found.class_names == ("class_0", "class_1", "class_2", "class_3")
    assert {split: len(pairs) for split, pairs in found.splits.items()} == {"test": 4, "validation": 4, "train": 12}
    assert sorted(stem for pairs in found.splits.values() for stem in stems(pairs)) == names
    for image, mask in itertools.chain(*found.splits.values()):
        assert image.replace("images", "masks").replace(".jpg", ".png") == mask
    assert read_mask_folder(tmp_path, 0.2, 0.25) == found


def test_a_split_folder_is_taken_as_it_is(tmp_path):
    write_pairs(tmp_path / "train", "abcd")
    write_pairs(tmp_path / "val", "xy")
    (tmp_path / "classes.txt").write_text("road\nsky\n")
    found = read_mask_folder(tmp_path, 0.25, 0.5)
    assert found.class_names == ("road", "sky")
    assert stems(found.splits["validation"]) == ["x", "y"]
    assert len(found.splits["test"]) == 1  # Held out, because there is no test folder.
    assert len(found.splits["train"]) == 3


def test_images_that_are_in_two_split_folders_are_named(tmp_path):
    write_pairs(tmp_path / "train", "abcd")
    write_pairs(tmp_path / "test", "xy")
    overlap = read_mask_folder(tmp_path, 0.25, 0.25).overlap
    assert f"{tmp_path}/test/images/y.jpg (test) and {tmp_path}/train/images/b.jpg (train)" in overlap
    for name in "ab":
        (tmp_path / "train" / "images" / f"{name}.jpg").unlink()
    assert read_mask_folder(tmp_path, 0.25, 0.25).overlap is None


def test_names_that_are_not_utf8_are_refused(tmp_path):
    write_pairs(tmp_path, "abc")
    os.rename(tmp_path / "images" / "a.jpg", os.fsencode(tmp_path / "images") + b"/caf\xe9.jpg")
    with pytest.raises(InputError, match=r"Names must be in UTF-8\. Received: '.*caf\\udce9.jpg'"):
        read_mask_folder(tmp_path, 0.2, 0)
    os.remove(os.fsencode(tmp_path / "images") + b"/caf\xe9.jpg")
    (tmp_path / "classes.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match=r"classes\.txt cannot be read as text in UTF-8"):
        read_mask_folder(tmp_path, 0.2, 0)


def test_what_does_not_fit_is_skipped_and_named(tmp_path):
    write_pairs(tmp_path, "abcdefgh")
    (tmp_path / "classes.txt").write_text("road\nsky\n")
    (tmp_path / "masks" / "a.png").unlink()
    (tmp_path / "masks" / "b.png").write_bytes(b"no picture")
    (tmp_path / "masks" / "c.png").write_bytes(encode_png(np.zeros((9, 6), "uint8")))
    (tmp_path / "masks" / "d.png").write_bytes(encode_png(np.full((6, 9), 2, "uint8")))
    (tmp_path / "images" / "e.jpg").write_bytes(b"no picture")
    bomb = bytearray(encode_png(np.zeros((6, 9), "uint8")))
    bomb[16:24] = struct.pack(">II", 20_000, 20_000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bomb[12:29]))
    (tmp_path / "masks" / "h.png").write_bytes(bomb)
    (tmp_path / "images" / "f.jpg").rename(tmp_path / "images" / "f.tif")
    write_pairs(tmp_path, "i")
    found = read_mask_folder(tmp_path, 0.5, 0.0)
    problems = {path.rpartition("/")[2]: problem for path, problem in found.skipped.items()}
    assert problems.keys() == {f"{name}.jpg" for name in "abcdeh"} | {"f.tif"}
    assert problems["f.tif"] == ".tif files cannot be decoded; convert the file to JPEG or PNG"
    assert "400000000 pixels" in problems["h.jpg"]
    assert problems["a.jpg"] == "has no mask a.png"
    assert problems["b.jpg"].startswith("its mask cannot be used: cannot identify")
    assert problems["c.jpg"] == "its mask cannot be used: it has 6 x 9 pixels, but the image has 9 x 6"
    assert "its mask has the value 2, but values must be from 0 to 1, or 255 for void" in problems["d.jpg"]
    assert "Unknown image file format" in problems["e.jpg"]
    assert sorted(stems(found.splits["train"] + found.splits["test"])) == ["g", "i"]


def test_a_turned_photograph_has_an_upright_mask(tmp_path):
    write_pairs(tmp_path, "ab", size=(6, 9))
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    PIL.Image.new("RGB", (6, 9)).save(tmp_path / "images" / "a.jpg", exif=exif)
    assert not read_mask_folder(tmp_path, 0.5, 0.0).skipped


@pytest.mark.combination("train on masks with the values 0 and 255 only", "refused; 255 is void, objects must be 1")
def test_masks_of_one_class_are_refused(tmp_path):
    for values, received in ((0, 255), "0, 255"), ((0,), "0"), ((1, 255), "1, 255"):
        write_pairs(tmp_path, "abc", values=values)
        with pytest.raises(InputError, match=rf"no values other than {received}, but .* as 1 instead of 255, .*s\.txt"):
            read_mask_folder(tmp_path, 0.4, 0)


@pytest.mark.combination("train on masks in which a class of classes.txt has no pixels", "a sentence names the class")
def test_classes_without_pixels_are_named(tmp_path):
    write_pairs(tmp_path, "abc", values=(0, 255))
    (tmp_path / "classes.txt").write_text("ground\nobject\n", encoding="utf-8-sig")
    found = read_mask_folder(tmp_path, 0.4, 0)
    assert found.class_names == ("ground", "object")  # Without the byte order mark.
    assert found.notes == (
        "No mask contains these classes: object. The masks have the values 0, 255. 255 is void: write the pixels of a "
        "class as the index of the class.",
    )
    write_pairs(tmp_path, "a", values=(0, 1))
    assert read_mask_folder(tmp_path, 0.4, 0).notes == ()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda root: None, "has no folders images and masks. Expected"),
        (lambda root: write_pairs(root, ""), "has no image with a mask that can be used"),
        (
            lambda root: write_pairs(root / "train", "ab"),
            "so its folders must be .* must contain the folders images and masks",
        ),
        (lambda root: (write_pairs(root, "ab"), (root / "classes.txt").write_text("a\na\n")), "per line"),
        (lambda root: (write_pairs(root, "ab"), (root / "classes.txt").write_text("a\n")), "It has 1 lines"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(tmp_path, make, expected):
    make(tmp_path)
    with pytest.raises(InputError, match=expected):
        read_mask_folder(tmp_path, 0.2, 0.1)


def test_a_directory_is_needed(tmp_path):
    with pytest.raises(InputError, match="The folder data set needs"):
        read_mask_folder(None, 0.2, 0.1)
    with pytest.raises(InputError, match="is not a directory"):
        read_mask_folder(tmp_path / "absent", 0.2, 0.1)
