"""Folders of photographs, with valid and invalid layouts."""

import os
import shutil
import struct

import numpy as np
import PIL.Image
import pytest

from training import recipes
from training.data.loading import load_dataset
from training.data.sets.folder import read_folder
from training.errors import InputError
from training.recipe.assignments import override


def write_image(path, size=(6, 5)):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(abs(hash(path.parts[-3:])) % 2**32).integers(0, 256, (*size, 3), "uint8")
    PIL.Image.fromarray(pixels).save(path)


@pytest.fixture
def photographs(tmp_path):
    for name, count in {"cat": 10, "dog": 5, "eel": 1}.items():
        for i in range(count):
            write_image(tmp_path / "photographs" / name / f"{i}.{'png' if i % 2 else 'jpg'}")
    return tmp_path / "photographs"


def test_split_is_stratified_complete_and_disjoint(photographs, tmp_path):
    folder = read_folder(photographs, test_fraction=0.2, validation_fraction=0.25)
    assert folder.class_names == ("cat", "dog", "eel")
    counts = {name: [label for _, label in images] for name, images in folder.splits.items()}
    assert [counts["test"].count(label) for label in range(3)] == [2, 1, 0]
    assert [counts["validation"].count(label) for label in range(3)] == [2, 1, 0]
    assert [counts["train"].count(label) for label in range(3)] == [6, 3, 1]
    paths = [path for images in folder.splits.values() for path, _ in images]
    assert len(paths) == len(set(paths)) == 16
    assert all(f"/{folder.class_names[label]}/" in path for images in folder.splits.values() for path, label in images)
    # The split is the same wherever the directory lies.
    moved = read_folder(photographs.rename(tmp_path / "elsewhere"), 0.2, 0.25)
    for split, images in folder.splits.items():
        assert [(path.replace("elsewhere", "photographs"), label) for path, label in moved.splits[split]] == images


def test_copies_of_an_image_are_in_the_same_split(photographs):
    for i in range(4):
        shutil.copy(photographs / "cat" / "0.jpg", photographs / "cat" / f"copy {i}.jpg")
    for fractions in ((0.2, 0.25), (0.5, 0.5), (0.9, 0.9)):
        splits = read_folder(photographs, *fractions).splits
        [of_copies] = [split for split, images in splits.items() if any("copy" in path for path, _ in images)]
        assert sum("copy" in path or path.endswith("/cat/0.jpg") for path, _ in splits[of_copies]) == 5
        assert all(splits[split] for split in ("train", "test"))
        assert sum(map(len, splits.values())) == 20


@pytest.mark.parametrize("name", [b"caf\xe9.png", b"../caf\xe9/1.png"])
def test_names_that_are_not_utf8_are_refused(photographs, name):
    path = os.path.join(os.fsencode(photographs), b"cat", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shutil.copy(os.fsencode(photographs / "cat" / "1.png"), path)
    with pytest.raises(InputError, match=r"^Names must be in UTF-8\. Received: '.*caf\\udce9.*'\. Rename the file"):
        read_folder(photographs, 0.2, 0)


def test_unreadable_images_are_skipped_by_name(photographs, capsys):
    (photographs / "cat" / "broken.jpg").write_bytes((photographs / "cat" / "0.jpg").read_bytes()[:200])
    (photographs / "cat" / "text.png").write_text("no image")
    (photographs / "dog" / "empty.png").write_bytes(b"")
    (photographs / "dog" / "phone.heic").write_bytes(b"....ftypheic")
    (photographs / "dog" / "notes.txt").write_text("not meant as an image")
    (photographs / "dog" / ".hidden.png").write_text("a thumbnail cache")
    png = bytearray((photographs / "dog" / "1.png").read_bytes())
    png[16:24] = struct.pack(">II", 20_000, 20_000)
    (photographs / "dog" / "bomb.png").write_bytes(png)
    (photographs / "fox").mkdir()
    folder = read_folder(photographs, 0.2, 0)
    skipped = {path.rpartition("/")[2]: problem for path, problem in folder.skipped.items()}
    assert set(skipped) == {"broken.jpg", "text.png", "empty.png", "phone.heic", "bomb.png", "fox"}
    assert skipped["empty.png"] == "Input is empty."
    assert "convert the file to JPEG or PNG" in skipped["phone.heic"]
    assert (
        "has 20,000 x 20,000 pixels. It must have at most 89,478,485" in skipped["bomb.png"]
    )  # The image is not decoded.
    assert all(skipped.values())
    recipe = override(recipes.load("folder"), [f"data.directory={photographs}"])
    sizes = {name: source.size for name, source in load_dataset(recipe.data).splits.items()}
    assert sizes == {"train": 12, "validation": 1, "test": 3}
    assert "empty.png: Input is empty.\n" in capsys.readouterr().out


@pytest.mark.combination("train on a class folder with links to folders", "each linked folder is read once")
@pytest.mark.combination("train on a class folder with broken links to images", "they are listed as skipped")
def test_links_are_followed(photographs, tmp_path):
    write_image(tmp_path / "more" / "deep" / "linked.png")
    for link, target in {
        "a": tmp_path / "more",
        "b": tmp_path / "more" / "deep",  # Read already.
        "c": photographs,  # Contains the other classes.
        "d": ".",
        "gone.png": "absent.png",
    }.items():
        (photographs / "cat" / link).symlink_to(target)
    (tmp_path / "more" / "deep" / "up").symlink_to(photographs / "cat")
    folder = read_folder(photographs, 0.2, 0)
    cats = [path for images in folder.splits.values() for path, label in images if label == 0]
    assert len(cats) == 11
    assert str(photographs / "cat" / "a" / "deep" / "linked.png") in cats
    assert folder.skipped == {
        str(photographs / "cat" / "gone.png"): "a link to absent.png, which does not exist",
    }


def test_a_directory_that_is_split_already_keeps_its_splits(tmp_path):
    for split, count in {"train": 8, "Valid": 2}.items():
        for name in ("cat", "dog"):
            for i in range(count):
                write_image(tmp_path / split / name / f"{i}.png")
    folder = read_folder(tmp_path, test_fraction=0.25, validation_fraction=0.5)
    assert folder.class_names == ("cat", "dog")
    assert {split: len(images) for split, images in folder.splits.items()} == {"train": 12, "test": 4, "validation": 4}
    assert all("/Valid/" in path for path, _ in folder.splits["validation"])
    assert all("/train/" in path for path, _ in folder.splits["train"] + folder.splits["test"])
    write_image(tmp_path / "Valid" / "eel" / "1.png")
    with pytest.raises(InputError, match="eel"):
        read_folder(tmp_path, 0.25, 0.5)


def test_images_that_are_in_two_split_folders_are_named(tmp_path):
    for split in ("train", "test"):
        for i in range(24):
            write_image(tmp_path / split / ("cat", "dog")[i % 2] / f"{split}{i}.png")
    assert read_folder(tmp_path, 0.2, 0.2).overlap is None
    original, copy = tmp_path / "test" / "cat" / "test0.png", tmp_path / "train" / "cat" / "again.png"
    shutil.copy(original, copy)
    assert read_folder(tmp_path, 0.2, 0.2).overlap == (
        f"Images are in two splits:\n  {original} (test) and {copy} (train)\nRemove one file of each pair."
    )
    shutil.copytree(tmp_path / "test" / "dog", tmp_path / "train" / "dog", dirs_exist_ok=True)
    assert "\n  … (13 in all)\nRemove" in read_folder(tmp_path, 0.2, 0.2).overlap


def test_what_is_no_such_directory_is_refused_with_what_is_expected(tmp_path):
    with pytest.raises(InputError, match=r"needs data\.directory"):
        read_folder(None, 0.2, 0.1)
    with pytest.raises(InputError, match=r"is not a directory.*cat/1\.jpg"):
        read_folder(tmp_path / "absent", 0.2, 0.1)
    with pytest.raises(InputError, match=r"no readable images.*cat/1\.jpg"):
        read_folder(tmp_path, 0.2, 0.1)
    write_image(tmp_path / "1.png")
    with pytest.raises(InputError, match=r"1 images.*no class folders.*cat/1\.jpg"):
        read_folder(tmp_path, 0.2, 0.1)
    write_image(tmp_path / "cat" / "1.png")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "1.png").write_text("no image")
    with pytest.raises(InputError, match=r"(?s)only one class, 'cat'.*dog/1\.png: Unknown image file format"):
        read_folder(tmp_path, 0.2, 0.1)


@pytest.mark.combination("train on folders train and Train", "refused; both are named")
@pytest.mark.parametrize("others", [[], ["extra", "test"], ["val", "validation"], ["Train"], ["Train", "test"]])
def test_half_a_split_is_not_taken_for_classes(others, tmp_path):
    for folder in ["train", *others]:
        for name in ("cat", "dog"):
            write_image(tmp_path / folder / name / "1.png")
    expected = rf"so its folders must be train, .* Its folders: {', '.join(sorted(['train', *others]))}\. If"
    with pytest.raises(InputError, match=expected):
        read_folder(tmp_path, 0.2, 0.1)


def test_train_may_be_a_class(tmp_path):
    for name in ("train", "bus"):
        write_image(tmp_path / name / "1.png")
    assert read_folder(tmp_path, 0.2, 0.1).class_names == ("bus", "train")


@pytest.mark.combination("all images of a class are copies of one file, or in subfolders", "a sentence names the class")
def test_classes_of_copies_and_of_subfolders_are_named(tmp_path):
    for number in range(6):
        write_image(tmp_path / "cat" / f"{number}.png")
        write_image(tmp_path / "dog" / "small" / f"{number}.png", (7, 5))
    assert "are in subfolders: dog. The class" in read_folder(tmp_path, 0.2, 0.2).notes[0]
    for number in range(1, 6):
        shutil.copy(tmp_path / "cat" / "0.png", tmp_path / "cat" / f"{number}.png")
    assert "are copies of one file: cat. Copies" in read_folder(tmp_path, 0.2, 0.2).notes[0]
    shutil.move(tmp_path / "dog", tmp_path / "cat" / "dog")
    with pytest.raises(InputError, match=r"only one class, 'cat'.* If the classes are dog, set data.directory=.*/cat"):
        read_folder(tmp_path, 0.2, 0.2)
