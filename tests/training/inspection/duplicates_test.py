"""Planted copies are found and other pictures are not. The report lists the copies."""

import contextlib
import csv
import dataclasses
import html
import io
import pathlib

import numpy as np
import PIL.Image
import pytest
import scipy.fft

from training.__main__ import main
from training.cli.parser import parse
from training.data.loading import load_dataset
from training.data.sets.folder import read_folder
from training.inspection.duplicates import perceptual_hashes
from training.inspection.duplicates_report import find_and_report
from training.recipe.assignments import override
from training.recipe.config import Data


def scenes(count, seed):
    """Pictures (64, 80, 3) of soft shapes in many sizes and colors. All are different."""
    rng = np.random.default_rng(seed)
    pictures = []
    for _ in range(count):
        coarse = rng.uniform(0, 255, (5, 6, 3)).astype("uint8")
        fine = rng.normal(0, 12, (64, 80, 3))
        soft = np.asarray(PIL.Image.fromarray(coarse).resize((80, 64), PIL.Image.BICUBIC), float)
        pictures.append(PIL.Image.fromarray(np.clip(soft + fine, 0, 255).astype("uint8")))
    return pictures


def encoded(picture, kind="png", **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def cropped(picture, part):
    rows, columns = (round(part * side / 2) for side in (picture.height, picture.width))
    return picture.crop((columns, rows, picture.width - columns, picture.height - rows))


KNOWN = scenes(20, seed=0)


TURNED = PIL.Image.Exif()
TURNED[0x0112] = 6  # Viewers rotate the picture back.
# {change of a picture: (kind of the copy, file extension, function that makes the file)}
PLANTED = {
    "file": ("same file", "png", encoded),
    "format": ("same pixels", "bmp", lambda picture: encoded(picture, "bmp")),
    "smaller": ("alike", "png", lambda picture: encoded(picture.resize((50, 33), PIL.Image.BICUBIC))),
    "larger": ("alike", "png", lambda picture: encoded(picture.resize((200, 200)))),
    "compression": ("alike", "jpg", lambda picture: encoded(picture, "jpeg", quality=30)),
    "gray": ("alike", "png", lambda picture: encoded(picture.convert("L"))),
    "contrast": ("alike", "png", lambda picture: encoded(picture.point(lambda level: 30 + 0.7 * level))),
    "crop": ("alike", "png", lambda picture: encoded(cropped(picture, 0.03))),
    "mirror": (
        "mirrored",
        "jpg",
        lambda picture: encoded(picture.transpose(PIL.Image.FLIP_LEFT_RIGHT), "jpeg", quality=80),
    ),
    "orientation": (
        "alike",
        "jpg",
        lambda picture: encoded(picture.transpose(PIL.Image.ROTATE_90), "jpeg", exif=TURNED),
    ),
}
SEVERAL, *COPIED = np.random.default_rng(1).permutation(20)[:7].tolist()  # Known pictures that get copied.
CLASSES = "<b>ant", "bee"
HOSTILE = '"><img src=x onerror=alert(1)>.png'


def write_files(folder, files):
    """Writes {name: (index of the class, content)} into folders of classes."""
    for name, (label, content) in files.items():
        path = folder / CLASSES[label] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def flat(level, size=(20, 12)):
    return PIL.Image.new("RGB", size, (level,) * 3)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder with six planted copies of each kind among its test images. The gray copies have another label."""
    folder, worse = tmp_path_factory.mktemp("photographs"), encoded(KNOWN[SEVERAL], "jpeg", quality=5)
    train = {f"{i:02}.png": (i % 2, encoded(picture)) for i, picture in enumerate(KNOWN)}
    train |= {"0-worse.jpg": (1, worse), "1-worse.jpg": (1, worse), "flat.png": (1, encoded(flat(100)))}
    write_files(folder / "train", train)
    test = {
        f"{change}-{i:02}.{ending}": ((i + (change == "gray")) % 2, change_picture(KNOWN[i]))
        for change, (_, ending, change_picture) in PLANTED.items()
        for i in COPIED
    }
    test |= {f"stranger-{i}.png": (i % 2, encoded(picture)) for i, picture in enumerate(scenes(3, seed=2))}
    test |= {
        HOSTILE: (SEVERAL % 2, encoded(KNOWN[SEVERAL].resize((79, 63)))),
        "worse.jpg": (1, worse),
        "almost-flat.png": (1, encoded(flat(101))),
        "flat.bmp": (1, encoded(flat(100), "bmp")),
        "flat-larger.png": (1, encoded(flat(100, (21, 12)))),
    }
    write_files(folder / "test", test)
    return folder


@pytest.fixture(scope="module")
def found(photographs, tmp_path_factory):
    """The command's output, {name of a test image: its row in the table}, and the page."""
    folder, printed = tmp_path_factory.mktemp("found"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        data = [f"data.directory={photographs}", "data.validation_fraction=0"]
        assert not main(["duplicates", "folder", *data, "--to", str(folder)])
    rows = list(csv.DictReader((folder / "duplicates.csv").open()))
    found = {pathlib.Path(row["image"]).name: row for row in rows}
    assert len(found) == len(rows)
    return printed.getvalue().splitlines(), found, (folder / "duplicates.html").read_text()


def test_planted_copies_are_found(found, photographs):
    rows = found[1]
    for change, (kind, ending, _) in PLANTED.items():
        for i in COPIED:
            row = rows[f"{change}-{i:02}.{ending}"]
            assert row["train_image"] == f"{photographs}/train/{CLASSES[i % 2]}/{i:02}.png"
            assert row["kind"] == kind, change
            assert float(row["correlation"]) > 0.9, change
            assert int(row["distance"]) <= 11, change
            assert row["train_label"] == CLASSES[i % 2]
            assert row["label"] == CLASSES[(i + (change == "gray")) % 2]
            assert row["same_label"] == str(change != "gray")
    assert {name.partition("-")[0] for name in rows} == {*PLANTED, HOSTILE, "worse.jpg", "flat.bmp"}
    # Pictures without structure are found by their pixels alone.
    assert rows["flat.bmp"]["kind"] == "same pixels"
    # Of several training images, the most similar one is named.
    near, same = rows[HOSTILE], rows["worse.jpg"]
    assert (near["train_image"].rpartition("/")[2], near["kind"]) == (f"{SEVERAL:02}.png", "alike")
    train = [path for path, _ in read_folder(photographs, 0.5, 0).splits["train"]]
    assert (same["train_image"], same["kind"]) == (next(path for path in train if "worse" in path), "same file")
    assert (same["distance"], same["correlation"]) == ("0", "1.0000")


def test_the_command_writes_a_page(found):
    lines, rows, page = found
    assert len(rows) == 63
    assert lines[0] == (
        f"63 of 68 test images ({63 / 68:.2%}) are like one of the 23 training images: same file 7, same pixels 7, "
        f"alike 43, mirrored 6."
    )
    assert lines[1] == "6 of these images have a different label than their training image."
    assert "60 of 63 duplicates, each beside its training image." in page
    assert page.count("<img ") == 2 * 60
    assert page.index(html.escape(f"{CLASSES[0]} / bee")) < page.index(">bee <"), "those with another label stand first"
    assert "<style>" in page
    assert "$" not in page
    # Names cannot change the page.
    assert CLASSES[0] not in page
    assert HOSTILE not in page
    assert html.escape(rows[HOSTILE]["image"]) in page


def test_hashes_are_those_of_the_cosine_transform():
    gray = np.random.default_rng(0).uniform(0, 255, (9, 32, 32))
    lowest = scipy.fft.dctn(gray, axes=(1, 2))[:, :8, :8].reshape(9, 64)[:, 1:]
    bits = lowest > np.median(lowest, axis=1, keepdims=True)
    hashes, mirrored = perceptual_hashes(gray)
    expected = [int("".join("01"[bit] for bit in row), 2) for row in bits.astype(int).tolist()]
    assert hashes.tolist() == expected
    again, back = perceptual_hashes(gray[:, :, ::-1])
    assert (again.tolist(), back.tolist()) == (mirrored.tolist(), expected)
    assert perceptual_hashes(0.5 * gray + 40)[0].tolist() == expected


@pytest.mark.slow
def test_the_test_images_of_another_recipe_are_looked_for_among_drawn_images(brief_recipe, tmp_path):
    """The recipe draws five digits for training. One of them is among the test images."""
    drawn = override(brief_recipe, ["data.train_images=5"])
    files = [example["image"] for example in load_dataset(drawn.data).splits["train"].in_order().as_numpy_iterator()]
    write_files(tmp_path / "train", {"0.png": (0, encoded(KNOWN[0])), "1.png": (1, encoded(KNOWN[1]))})
    write_files(tmp_path / "test", {"0.png": (0, encoded(KNOWN[2])), "digit.png": (1, files[3])})
    data = {"dataset": "folder", "directory": str(tmp_path), "validation_fraction": 0}
    folder = dataclasses.replace(brief_recipe, data=Data(**data))
    text = find_and_report(drawn, folder, tmp_path / "found", correlation=0.995)
    assert text.startswith("1 of 2 test images (50.00%) are like one of the 5 training images: same file 1.")
    assert "listed by their index in the subset that data.train_images selects, from 0" in text
    [row] = csv.DictReader((tmp_path / "found" / "duplicates.csv").open())
    assert row["image"].endswith("digit.png")
    assert row["train_image"] == "3"
    assert row["label"] == row["same_label"] == ""


def test_numbers_of_options_are_numbers():
    assert parse(["duplicates", "digits", "--correlation", "0.95"]).correlation == 0.95
