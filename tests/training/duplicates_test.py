"""Planted copies are found, other pictures are not; the report says which."""

import csv
import dataclasses
import html
import io

import numpy as np
import PIL.Image
import pytest
import scipy.fft
import sklearn.datasets
import tensorflow as tf

from training.__main__ import main
from training.config import Data
from training.duplicates import Duplicate, DuplicateFinder, perceptual_hashes
from training.duplicates_report import find_and_report
from training.sources import IndexedSource


def scenes(count, seed):
    """Pictures of soft shapes in many sizes and colors, (64, 80, 3): no two are alike."""
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


def source_of(files):
    contents = tf.constant(files)
    return IndexedSource(len(files), lambda index: {"image": contents[index], "label": tf.constant(0, tf.int64)})


def cropped(picture, part):
    rows, columns = (round(part * side / 2) for side in (picture.height, picture.width))
    return picture.crop((columns, rows, picture.width - columns, picture.height - rows))


KNOWN = scenes(40, seed=0)


TURNED = PIL.Image.Exif()
TURNED[0x0112] = 6  # To be looked at turned back.
PLANTED = {
    "file": ("same file", encoded),
    "format": ("same pixels", lambda picture: encoded(picture, "bmp")),
    "smaller": ("alike", lambda picture: encoded(picture.resize((50, 33), PIL.Image.BICUBIC))),
    "larger": ("alike", lambda picture: encoded(picture.resize((200, 200)))),
    "compression": ("alike", lambda picture: encoded(picture, "jpeg", quality=30)),
    "gray": ("alike", lambda picture: encoded(picture.convert("L"))),
    "contrast": ("alike", lambda picture: encoded(picture.point(lambda level: 30 + 0.7 * level))),
    "crop": ("alike", lambda picture: encoded(cropped(picture, 0.03))),
    "mirror": ("mirrored", lambda picture: encoded(picture.transpose(PIL.Image.FLIP_LEFT_RIGHT), "jpeg", quality=80)),
    "orientation": ("alike", lambda picture: encoded(picture.transpose(PIL.Image.ROTATE_90), "jpeg", exif=TURNED)),
    "another picture": None,
}
COPIES = 8  # Of each kind, of known images in another order.


@pytest.fixture(scope="module")
def found():
    """{index: `Duplicate`} of all planted copies and strangers at once: of each kind eight, one after the other."""
    finder = DuplicateFinder(source_of([encoded(picture) for picture in KNOWN]))
    order, strangers = np.random.default_rng(1).permutation(40)[:COPIES], scenes(COPIES, seed=2)
    files = []
    for planted in PLANTED.values():
        files += [planted[1](KNOWN[i]) for i in order] if planted else [encoded(picture) for picture in strangers]
    return {one.index: one for one in finder.find(source_of(files))}


@pytest.mark.parametrize("change", PLANTED)
def test_planted_copies_are_found_and_nothing_else(found, change):
    first = COPIES * list(PLANTED).index(change)
    of_change = [found.get(index) for index in range(first, first + COPIES)]
    if PLANTED[change] is None:
        assert of_change == [None] * COPIES
        return
    order = np.random.default_rng(1).permutation(40)[:COPIES].tolist()
    assert [(one and one.train_index, one and one.kind) for one in of_change] == [
        (index, PLANTED[change][0]) for index in order
    ]
    assert all(one.correlation > 0.9 and one.distance <= 11 for one in of_change)


def test_of_several_the_most_alike_is_named():
    worse = encoded(KNOWN[3], "jpeg", quality=5)
    finder = DuplicateFinder(source_of([worse, encoded(KNOWN[7]), encoded(KNOWN[3]), worse]))
    [near] = finder.find(source_of([encoded(KNOWN[3].resize((79, 63)))]))
    assert (near.train_index, near.kind) == (2, "alike")
    assert finder.find(source_of([worse])) == [Duplicate(0, 0, "same file", 0, 1.0)]


def test_pictures_without_structure_are_found_by_their_pixels_alone():
    gray, almost = (PIL.Image.new("RGB", (20, 12), (level,) * 3) for level in (100, 101))
    finder = DuplicateFinder(source_of([encoded(gray), encoded(KNOWN[0])]))
    found = finder.find(source_of([encoded(almost), encoded(gray, "bmp"), encoded(gray.resize((21, 12)))]))
    assert [(one.index, one.kind) for one in found] == [(1, "same pixels")]


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


@pytest.fixture
def photographs(tmp_path):
    """A folder that is split, whose test images 0 and 2 are copies, one of them with another label."""
    names = ("ant", "bee")
    for split, pictures in (("train", KNOWN[:6]), ("test", [KNOWN[4], *scenes(1, seed=3), KNOWN[1].resize((60, 50))])):
        for i, picture in enumerate(pictures):
            label = names[i % 2] if split == "train" else ("ant", "ant", "ant")[i]
            path = tmp_path / "photographs" / split / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)
    (tmp_path / "photographs" / "test" / "bee").mkdir()
    scenes(1, seed=4)[0].save(tmp_path / "photographs" / "test" / "bee" / "9.png")
    return tmp_path / "photographs"


def test_the_command_writes_a_table_and_a_page(photographs, tmp_path, capsys):
    data = [f"data.directory={photographs}", "data.validation_fraction=0"]
    assert not main(["duplicates", "folder", *data, "--to", str(tmp_path / "found")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("2 of 4 test images (50.00%) are like one of the 6 training images: same file 1, alike 1.")
    assert lines[1] == "1 of them have another label than that one."
    rows = list(csv.DictReader((tmp_path / "found" / "duplicates.csv").open()))
    assert [
        (row["image"], row["train_image"], row["kind"], row["label"], row["train_label"], row["same_label"])
        for row in rows
    ] == [
        (f"{photographs}/test/ant/0.png", f"{photographs}/train/ant/4.png", "same file", "ant", "ant", "True"),
        (f"{photographs}/test/ant/2.png", f"{photographs}/train/bee/1.png", "alike", "ant", "bee", "False"),
    ]
    page = (tmp_path / "found" / "duplicates.html").read_text()
    assert page.count("<img ") == 4
    assert page.index("ant / bee") < page.index(">ant <"), "those with another label stand first"
    assert "<style>" in page
    assert "$" not in page


def test_names_cannot_change_the_page(tmp_path):
    label, name = "<b>ant", '"><img src=x onerror=alert(1)>.png'
    places = ("train", label), ("train", "bee"), ("test", label), ("test", "bee")
    for (split, folder), picture in zip(places, (0, 1, 1, 2), strict=True):
        path = tmp_path / "photographs" / split / folder / name
        path.parent.mkdir(parents=True)
        KNOWN[picture].save(path)
    data = [f"data.directory={tmp_path / 'photographs'}", "data.validation_fraction=0"]
    assert not main(["duplicates", "folder", *data, "--to", str(tmp_path / "found")])
    page = (tmp_path / "found" / "duplicates.html").read_text()
    assert label not in page
    assert name not in page
    assert html.escape(f"{label} / bee") in page
    assert html.escape(f"{tmp_path}/photographs/test/{label}/{name}") in page


def test_drawn_training_images_are_named_by_their_place_in_the_draw(photographs, tmp_path, capsys):
    data = [f"data.directory={photographs}", "data.validation_fraction=0", "data.train_images=5"]
    assert not main(["duplicates", "folder", *data, "--to", str(tmp_path / "found")])
    rows = list(csv.DictReader((tmp_path / "found" / "duplicates.csv").open()))
    assert rows
    assert all(int(row["train_image"]) < 5 for row in rows)
    assert "named by their place, from 0, among those that data.train_images draws" in capsys.readouterr().out


@pytest.mark.slow
def test_digits_have_no_copies(brief_recipe, tmp_path):
    """The 1,797 scans differ, of the same digit too; what is this alike is the same scan."""
    text = find_and_report(brief_recipe, brief_recipe, tmp_path, correlation=0.995)
    assert text.startswith(
        "0 of 360 test images (0.00%) are like one of the 1,293 training images.\n0 of 144 validation"
    )


def test_the_test_images_of_another_recipe_are_looked_for(brief_recipe, photographs, tmp_path):
    """Scans of digits among photographs: none; and the other way round one that was put there."""
    digit = sklearn.datasets.load_digits().images[0] * (255 / 16)
    data = {"dataset": "folder", "directory": str(photographs), "validation_fraction": 0}
    folder = dataclasses.replace(brief_recipe, data=Data(**data))
    PIL.Image.fromarray(np.round(digit).astype("uint8")).save(photographs / "test" / "bee" / "digit.png")
    text = find_and_report(brief_recipe, folder, tmp_path, correlation=0.995)
    assert text.startswith("1 of 5 test images (20.00%) are like one of the 1,293 training images: same pixels 1.")
    [row] = csv.DictReader((tmp_path / "duplicates.csv").open())
    assert row["image"].endswith("digit.png")
    assert row["label"] == row["same_label"] == ""
