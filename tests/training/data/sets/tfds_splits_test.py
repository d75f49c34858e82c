"""TFDS splits contain the right images, and no image is in two splits."""

import itertools
import re

import pytest

from tests.training.mock_metadata import mocked_data_sets
from training import recipes
from training.data.loading import load_dataset
from training.errors import InputError
from training.recipe.assignments import override

SIZES = {"train": 12, "validation": 4}


@pytest.fixture
def data(tmp_path):
    """A function that returns the `Data` of a data set with these splits, with the given changes."""

    def changed(*changes):
        fields = ["dataset=mnist", f"tfds_directory={tmp_path}", *changes]
        return override(recipes.load("cifar10"), [f"data.{field}" for field in fields]).data

    with mocked_data_sets(tmp_path, {"mnist": SIZES}):
        yield changed


def sizes(data):
    return {name: source.size for name, source in load_dataset(data).splits.items()}


def test_a_validation_split_is_named_where_the_training_split_is(data):
    for changes, expected in (
        ((), {"train": 11, "validation": 1, "test": 4}),
        (("test_split=validation[:100%]",), {"train": 11, "validation": 1, "test": 4}),
        (("train_split=train[:8]", "test_split=train[8:]", "validation_fraction=0"), {"train": 8, "test": 4}),
        (
            ("validation_split=train[8:]", "train_split=train[:8]", "validation_fraction=0"),
            {"train": 8, "validation": 4, "test": 4},
        ),
    ):
        assert sizes(data(*changes)) == expected


def test_splits_that_share_images_are_refused_with_splits_that_share_none(data):
    for changes, splits, shared in (
        (["test_split=train[80%:]"], ("train", "test"), "train[10:12]"),
        (["test_split=train"], ("train", "test"), "train[0:12]"),
        (["test_split=validation[:50%]"], ("test", "validation"), "validation[0:2]"),
        (["train_split=train+validation[1:]"], ("train", "test"), "validation[1:4]"),
        (["train_split=validation"], ("train", "test"), "validation[0:4]"),
        (["validation_split=train[5:9]"], ("train", "validation"), "train[5:9]"),
        (["validation_split=train"], ("train", "validation"), "train[0:12]"),
        (["validation_split=validation[:3]"], ("test", "validation"), "validation[0:3]"),
        (
            ["train_split=train[:6]", "validation_split=train[4:8]", "test_split=train[1:2]+train[7:]"],
            ("train", "test"),
            "train[1:2]",
        ),
    ):
        if not changes[0].startswith("test_split"):
            changes = [*changes, "validation_fraction=0"]
        with pytest.raises(
            InputError, match=f"{splits[0]} split .* and the {splits[1]} split .* of mnist both"
        ) as error:
            load_dataset(data(*changes))
        assert f" contain {shared}. Choose disjoint splits, such as data.train_split=" in str(error.value)
        suggested = re.findall(r"data\.(\w+=\S+)", str(error.value))
        assert sizes(data(*changes, *suggested)).keys() == load_dataset(data(*changes), disjoint=False).splits.keys()
        assert_disjoint([text.split("=")[1] for text in suggested if "_split" in text and "none" not in text])


def assert_disjoint(splits):
    images = [
        {
            (name, i)
            for name, first, end in re.findall(r"(\w+)\[(\d+):(\d+)\]", split)
            for i in range(int(first), int(end))
        }
        for split in splits
    ]
    assert all(images)
    assert not any(one & other for one, other in itertools.combinations(images, 2))


def test_where_too_few_images_are_left_nothing_is_suggested(data):
    changes = ["train_split=train[:1]", "test_split=train[:1]", "validation_fraction=0"]
    with pytest.raises(InputError, match=r"both contain train\[0:1\]\. Choose disjoint splits\.$"):
        load_dataset(data(*changes))


def test_empty_splits_are_refused(data):
    for split in ("train[9:3]", "train[3:3]"):
        with pytest.raises(InputError, match=rf"test split '{re.escape(split)}' of mnist is empty\."):
            load_dataset(data(f"test_split={split}"))


def test_where_nothing_is_learned_splits_may_share_images(data):
    assert load_dataset(data("test_split=train[9:]"), disjoint=False).splits["test"].size == 3
