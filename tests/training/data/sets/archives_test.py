"""Archives as data sets for classification, multi-label classification and regression."""

import io
import json
import tarfile

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from tests.pictures import encoded
from tests.test_case import rest_slow
from training import recipes
from training.data.loading import load_dataset
from training.errors import InputError
from training.recipe.assignments import override

SETS = [["cat", "dog"], [], ["dog"], ["cat"]]


def _image(number):
    return encoded(PIL.Image.new("RGB", (8, 8), (number, 0, 0)), "PNG")


def _write_tar(path, numbers, mode="w"):
    with tarfile.open(path, mode) as archive:
        for number in numbers:
            annotations = json.dumps({"labels": SETS[number % 4], "text": f"picture {number}", "age": number / 2})
            files = {"png": _image(number), "cls": str(number % 3 + 9).encode(), "json": annotations.encode()}
            for suffix, content in files.items():
                member = tarfile.TarInfo(f"x/{number}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def _write_records(path, numbers):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in numbers:
            image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[_image(number)]))
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 3 + 9]))
            names = [name.encode() for name in SETS[number % 4]]
            features = {"image/encoded": image, "image/class/label": label}
            features["labels"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=names))
            features["age"] = tf.train.Feature(float_list=tf.train.FloatList(value=[number / 2]))
            features = tf.train.Features(feature=features)
            writer.write(tf.train.Example(features=features).SerializeToString())


WRITERS = {"tar": _write_tar, "tfrecord": _write_records}


def _data(directory, *changes):
    changes = ["data.dataset=archives", f"data.directory={directory}", "model.input_shape=8,8,3", *changes]
    return override(recipes.load("digits"), changes).data


def _examples(dataset, annotation):
    """{red of the image: (split, label)}"""
    return {
        int(np.asarray(PIL.Image.open(io.BytesIO(example["image"])))[0, 0, 0]): (split, example[annotation].tolist())
        for split, source in dataset.splits.items()
        for example in source.in_order().as_numpy_iterator()
    }


@pytest.mark.parametrize("suffix", rest_slow(WRITERS))
@pytest.mark.parametrize("max_failures", [0, 1])
def test_the_names_of_archives_define_the_splits(suffix, max_failures, tmp_path):
    ranges = {"train": range(14), "val": range(14, 16), "test": range(16, 20)}
    for word, numbers in ranges.items():
        WRITERS[suffix](tmp_path / f"{word}-00000-of-00001.{suffix}", numbers)
    dataset = load_dataset(_data(tmp_path, f"data.max_failures={max_failures}"))
    assert dataset.class_names == ("9", "10", "11")  # In the order of the numbers.
    split = ["train"] * 14 + ["validation"] * 2 + ["test"] * 4
    assert _examples(dataset, "label") == {number: (split[number], number % 3) for number in range(20)}
    assert {name: len(items) for name, items in dataset.contents.items.items()} == {
        "train": 14,
        "validation": 2,
        "test": 4,
    }


@pytest.mark.parametrize("suffix", WRITERS)
def test_values_are_chosen_by_name(suffix, tmp_path):
    WRITERS[suffix](tmp_path / f"photographs.{suffix}", range(20))
    dataset = load_dataset(_data(tmp_path, "data.classes=age"), "values")
    assert {number: value for number, (_, value) in _examples(dataset, "values").items()} == {
        number: [number / 2] for number in range(20)
    }


@pytest.mark.parametrize("suffix", WRITERS)
def test_labels_and_splits_by_fractions(suffix, tmp_path):
    WRITERS[suffix](tmp_path / f"photographs.{suffix}", range(20))
    dataset = load_dataset(_data(tmp_path / f"photographs.{suffix}"), "labels")
    assert dataset.class_names == ("cat", "dog")
    expected = [[name in labels for name in ("cat", "dog")] for labels in SETS]
    examples = _examples(dataset, "labels")
    assert {number: label for number, (_, label) in examples.items()} == {n: expected[n % 4] for n in range(20)}
    assert [sum(split == name for split, _ in examples.values()) for name in ("train", "validation", "test")] == [
        14,
        2,
        4,
    ]


def test_what_cannot_be_read_is_skipped_and_named(tmp_path, capsys):
    _write_tar(tmp_path / "a.tar", range(20))
    _write_tar(tmp_path / "b.tar", range(20, 30))
    content = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(content.replace(_image(20)[:8], bytes(8)))
    assert len(_examples(load_dataset(_data(tmp_path)), "label")) == 20
    assert f"Skipped {tmp_path / 'b.tar'}/x/29.png: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"has no archives that can be read\. Expected a \.tar or \.tfrecord file"),
        ({"train.tar": "w", "test.tar": "w", "more.tar": "w"}, r"define splits.*Received: .*more\.tar"),
        ({"a.tar": "w:gz"}, r"a\.tar: cannot be read any further: .* not compressed"),
    ],
    ids=["none", "a name without a split", "compressed"],
)
def test_what_is_refused(files, message, tmp_path):
    for name, mode in files.items():
        _write_tar(tmp_path / name, range(5), mode)
    with pytest.raises(InputError, match=message):
        load_dataset(_data(tmp_path))
