"""Shards contain every image of a data set once, in a random order."""

import json

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from tests.training.fitting import keys_of
from training import recipes
from training.data.dataset import Dataset
from training.data.loading import load_dataset
from training.data.sets.records import read_records, write_records
from training.data.sources import PADDING, IndexedSource, Part
from training.errors import InputError
from training.recipe.assignments import override


@pytest.fixture
def photographs(tmp_path):
    """A recipe for 23 photographs of two classes. The brightness of a photograph identifies it."""
    for name in ("dark", "light"):
        (tmp_path / name).mkdir()
    for i in range(23):
        image = PIL.Image.new("RGB", (40, 30), (100 * (i % 2) + i,) * 3)
        image.save(tmp_path / ("dark", "light")[i % 2] / f"{i}.png")
    fields = ["model.weights=none", "model.config=Ti/16", "model.config.num_layers=1", "model.input_shape=32,32,3"]
    fields += ["data.test_fraction=0.2", "data.validation_fraction=0.1", "fit.batch_size=4"]
    return override(recipes.load("folder"), [f"data.directory={tmp_path}", *fields])


def test_shards_hold_the_same_images(photographs, tmp_path):
    dataset = load_dataset(photographs.data)
    directory = tmp_path / "shards"
    assert write_records(dataset, str(directory), images_per_shard=4) == 5 + 1 + 1
    fields = ["data.dataset=records", f"data.directory={directory}", "data.test_fraction=0.2"]
    recipe = override(photographs, [*fields, "data.cache=false", "data.shuffle_buffer=7"])
    shards = load_dataset(recipe.data)
    assert shards.class_names == dataset.class_names
    for name, source in shards.splits.items():
        stored, original = (
            sorted((e["image"], int(e["label"])) for e in part.in_order().as_numpy_iterator())
            for part in (source, dataset.splits[name])
        )
        assert stored == original
    for count in (1, 3):
        parts = [keys_of(shards.splits["train"], Part(2 * count, i, count), seed=1) for i in range(count)]
        images = [key["image"] for keys in parts for position, key in keys if position != PADDING]
        assert len(images) == len(set(images)) == shards.splits["train"].size
    with pytest.raises(InputError, match="already contains shards"):
        write_records(dataset, str(directory))


def test_an_index_that_is_none_is_refused(tmp_path):
    for index, problem in (
        ("[" * 10_000, "recursion limit exceeded"),
        (b"\xe9", "Invalid JSON"),
        ('{"class_names": ["a"], "splits": {"train": {}}}', "splits.train: Dictionary should have at least 1 item"),
        ('{"class_names": ["a"], "splits": {"trian": {"a": 1}}}', "should be 'train', 'validation' or 'test'"),
        ('{"class_names": ["a"], "splits": {"train": {"a": 0}}}', "greater than 0"),
        (
            '{"class_names": ["a"], "splits": {"train": {"a": 1, "b": 2}, "test": {"b": 2}}}',
            "b is in the splits train and test, but a file must be in only one split",
        ),
    ):
        (tmp_path / "records.json").write_bytes(index if isinstance(index, bytes) else index.encode())
        with pytest.raises(InputError, match=r"its records\.json cannot be read: .*To write shards") as error:
            read_records(str(tmp_path), 1)
        assert problem in str(error.value)


@pytest.mark.slow
def test_a_stream_is_shuffled_as_far_as_its_buffer_goes(photographs, tmp_path):
    directory = str(tmp_path / "shards")
    write_records(load_dataset(photographs.data), directory, images_per_shard=100)
    for buffer in (1, 1000):
        source = read_records(directory, buffer).source("train")
        order = [key["image"] for _, key in keys_of(source, Part(1), seed=1)]
        stored = [example["image"] for example in source.in_order().as_numpy_iterator()]
        assert (order == stored) == (buffer == 1)
    # A process can get an empty share of a split that has fewer images than processes.
    assert not list(source.stream([(0, 0)], tf.constant(1, tf.int64)))
    assert len(list(source.stream([(0, 0), (0, 2)], None))) == 2


@pytest.mark.slow
def test_classes_are_mixed_in_every_shard(tmp_path):
    """The source is ordered by class, as a folder is."""
    labels = np.repeat(range(3), 101)

    def read(index):
        return {"image": tf.strings.as_string(index), "label": tf.constant(labels)[index]}

    written = []
    for place in ("shards", "again"):
        dataset = Dataset(("ant", "bee", "cat"), {"train": IndexedSource(len(labels), read)})
        assert write_records(dataset, str(tmp_path / place), images_per_shard=60) == 6
        source = read_records(str(tmp_path / place), 1).source("train")
        written.append([(e["image"], int(e["label"])) for e in source.in_order().as_numpy_iterator()])
    assert written[0] == written[1]
    sizes = json.loads((tmp_path / "shards" / "records.json").read_text())["splits"]["train"].values()
    shards = np.split([label for _, label in written[0]], np.cumsum(list(sizes))[:-1])
    for shard in shards[:5]:
        # 60 of 303 are drawn without replacement. 20 per class are expected, with a standard deviation of 3.3.
        assert all(10 <= count <= 30 for count in np.bincount(shard, minlength=3))
