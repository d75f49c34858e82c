"""Tables of images as data sets for classification, multi-label classification and regression."""

import dataclasses
import io

import numpy as np
import PIL.Image
import pytest

from training import recipes
from training.data.loading import load_dataset
from training.errors import InputError
from training.recipe.assignments import override

LABELS = ["cat", "dog"]
SETS = ["cat;dog", "", "dog", "cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """20 images, and a table of each kind."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "sub").mkdir()
    names = [f"{'sub/' if number % 2 else ''}{number}.png" for number in range(20)]
    for number, name in enumerate(names):
        PIL.Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / name)
    columns = {
        "classes": ("label", [LABELS[number % 2] for number in range(20)]),
        "sets": ("labels", [SETS[number % 4] for number in range(20)]),
        "values": ("age,height", [f"{number},{number / 10}" for number in range(20)]),
    }
    for table, (header, cells) in columns.items():
        rows = [f"{name},{cell}" for name, cell in zip(names, cells, strict=True)]
        (folder / f"{table}.csv").write_text("\n".join([f"path,{header}", *rows]))
    splits = [("train", "validation", "test", "train")[number % 4] for number in range(20)]
    rows = [f"{name},{split},{number}" for number, (name, split) in enumerate(zip(names, splits, strict=True))]
    (folder / "split.csv").write_text("\n".join(["path,split,age", *rows]))
    return folder


def _data(table):
    changes = ["data.dataset=table", f"data.directory={table}", "model.input_shape=8,8,3"]
    return override(recipes.load("digits"), changes).data


def _examples(dataset, annotation="label"):
    """{red of the image: (split, label)}"""
    found = {}
    for split, source in dataset.splits.items():
        for example in source.in_order().as_numpy_iterator():
            image = np.asarray(PIL.Image.open(io.BytesIO(example["image"])))
            found[int(image[0, 0, 0])] = split, example[annotation].tolist()
    return found


def test_classes(folder):
    dataset = load_dataset(_data(folder / "classes.csv"))
    examples = _examples(dataset)
    assert dataset.class_names == ("cat", "dog")
    assert {number: label for number, (_, label) in examples.items()} == {number: number % 2 for number in range(20)}
    tested = [label for split, label in examples.values() if split == "test"]
    assert sorted(tested) == [0, 0, 1, 1]  # A fifth of each class.


def test_labels(folder):
    dataset = load_dataset(_data(folder / "sets.csv"), "labels")
    assert dataset.class_names == ("cat", "dog")
    expected = [[True, True], [False, False], [False, True], [True, False]]
    examples = _examples(dataset, "labels")
    assert {number: label for number, (_, label) in examples.items()} == {n: expected[n % 4] for n in range(20)}
    assert {split for split, _ in examples.values()} == {"train", "validation", "test"}


def test_values(folder):
    dataset = load_dataset(_data(folder / "values.csv"), "values")
    assert dataset.class_names == ("age", "height")
    for number, (_, values) in _examples(dataset, "values").items():
        np.testing.assert_allclose(values, [number, number / 10], rtol=1e-6)


def test_splits_of_the_table(folder):
    dataset = load_dataset(_data(folder / "split.csv"), "values")
    examples = _examples(dataset, "values")
    assert {number: split for number, (split, _) in examples.items()} == {
        number: ("train", "validation", "test", "train")[number % 4] for number in range(20)
    }
    assert [item.path for item in dataset.contents.items["test"]] == ["2.png", "6.png", "10.png", "14.png", "18.png"]
    assert dataset.contents.items["test"][0].label == "2.0"


def test_the_same_split_each_time(folder):
    first, again = (_examples(load_dataset(_data(folder / "values.csv"), "values"), "values") for _ in range(2))
    assert first == again


@pytest.mark.parametrize(
    ("text", "annotation", "message"),
    [
        ("path,label\n0.png,cat\nsub/1.png,cat\n", "label", "only one class, 'cat'"),
        ("path,label\n0.png,cat\nsub/1.png,\n2.png,dog\n", "label", r"row 2 \(1\.png\): the image has no label"),
        ("path,age\n0.png,1\n", "label", "has no column 'label'"),
        ("path,labels\n0.png,\n", "labels", "no image has a label"),
        ("path\n0.png\n", "values", "has no column of values besides path"),
        ("path,age\n0.png,1\n0.png,2\n", "values", "lists images more than once: .*0.png"),
        (
            "path,age\nabsent.png,1\n",
            "values",
            "lists no image that can be read, .*absent.png: No such file",
        ),
        (
            "path,split,age\n0.png,training,1\n",
            "values",
            r"row 1 \(0\.png\): split must be one of train, test, val",
        ),
        ("path,age,size\n0.png,1,2\nsub/1.png,2,x\n2.png,,3\n", "values", r"row 2 \(1\.png\): size .*2 such rows"),
        (
            'path,labels\n0.png,dog\n2.png,bee\nsub/1.png,"dog, cow"\n',
            "labels",
            "not commas. Received: 'dog, cow'",
        ),
    ],
)
def test_tables_that_cannot_be_used_are_refused(text, annotation, message, folder):
    (folder / "wrong.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        load_dataset(_data(folder / "wrong.csv"), annotation)


def test_few_wrong_rows_can_be_skipped(folder, capsys):
    rows = [f"{number}.png,{number if number else 'x'}" for number in range(0, 20, 2)]
    (folder / "wrong.csv").write_text("\n".join(["path,age", *rows]))
    with pytest.raises(InputError, match=r"row 1 \(0\.png\): age must .*'x'\. Correct .* with data\.max_failures=N"):
        load_dataset(_data(folder / "wrong.csv"), "values")
    data = dataclasses.replace(_data(folder / "wrong.csv"), max_failures=1)
    assert sorted(_examples(load_dataset(data, "values"), "values")) == list(range(2, 20, 2))
    assert f"Skipped {folder / '0.png'}: age must be a number. Received: 'x'" in capsys.readouterr().out


def test_columns_and_labels_are_chosen_by_name(folder):
    data = _data(folder / "values.csv")
    chosen = load_dataset(dataclasses.replace(data, classes=("height", "age")), "values")
    assert chosen.class_names == ("height", "age")
    assert _examples(chosen, "values")[7][1] == pytest.approx([0.7, 7])
    with pytest.raises(InputError, match=r"has no column 'heigth'. Did you mean 'height'"):
        load_dataset(dataclasses.replace(data, classes=("heigth",)), "values")
    data = dataclasses.replace(_data(folder / "sets.csv"), classes=("dog",))
    assert _examples(load_dataset(data, "labels"), "labels")[2][1] == [True]
    with pytest.raises(InputError, match=r"There is no label 'dogs'\. Did you mean 'dog'\? The data set has: cat, dog"):
        load_dataset(dataclasses.replace(data, classes=("dogs",)), "labels")


def test_splits_by_their_usual_names(folder):
    rows = [f"{number}.png,{('Train', 'val', 'test')[number % 3]},{number}" for number in range(0, 20, 2)]
    (folder / "named.csv").write_text("\n".join(["path,split,age", *rows]))
    assert set(load_dataset(_data(folder / "named.csv"), "values").splits) == {"train", "validation", "test"}
    (folder / "named.csv").write_text("\n".join(["path,split,age", *(row for row in rows if "test" not in row)]))
    with pytest.raises(InputError, match=r"named\.csv has no test images\. Add images with the split test\."):
        load_dataset(_data(folder / "named.csv"), "values").source("test")


def test_images_that_cannot_be_read_are_named(folder, capsys):
    rows = [f"{number}.png,{number}" for number in range(0, 20, 2)]
    (folder / "gaps.csv").write_text("\n".join(["path,age", *rows, "absent.png,7"]))
    dataset = load_dataset(_data(folder / "gaps.csv"), "values")
    assert len(_examples(dataset, "values")) == 10
    assert "absent.png: No such file or directory\nSkipped 1 in total." in capsys.readouterr().out


def test_the_path_of_the_table_is_needed():
    recipe = override(recipes.load("digits"), ["data.dataset=table"])
    with pytest.raises(InputError, match=r"needs data\.directory=<path of a \.csv, \.tsv, \.jsonl or \.parquet file>"):
        load_dataset(recipe.data, "values")
