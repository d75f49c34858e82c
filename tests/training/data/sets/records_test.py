"""Shards contain every image of a data set once, in a random order."""

import dataclasses
import json

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from tests.test_case import rest_slow
from tests.training.fitting import keys_of
from training import recipes
from training.data.augment import Augmentation
from training.data.dataset import Dataset
from training.data.loading import load_dataset
from training.data.pipeline import training_batches
from training.data.sets.records import read_records, write_records
from training.data.sources import PADDING, BatchShard, IndexedSource
from training.data.subsets import select
from training.errors import InputError, raised_in_pipeline
from training.recipe.assignments import override
from training.tasks import TASKS


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


@pytest.mark.slow
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
        parts = [keys_of(shards.splits["train"], BatchShard(2 * count, i, count), seed=1) for i in range(count)]
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


def tiny_shards(directory):
    """Writes ten images to shards of four. Returns a recipe and records.json."""

    def read(index):
        return {"image": tf.io.encode_png(tf.fill([8, 8, 1], tf.cast(index, tf.uint8))), "label": index % 2}

    splits = {split: IndexedSource(10, read) for split in ("train", "test")}
    write_records(Dataset(("ant", "bee"), splits), str(directory), images_per_shard=4)
    fields = ["data.dataset=records", f"data.directory={directory}", "data.cache=false"]
    return override(recipes.load("cifar10"), fields), directory / "records.json"


@pytest.mark.combination("train on shards of which a copy is in another split", "refused; both names are listed")
def test_a_shard_in_two_splits_is_refused(tmp_path):
    recipe, _ = tiny_shards(tmp_path)
    names = [f"{split}-00002-of-00003.tfrecord" for split in ("train", "test")]
    with pytest.raises(InputError) as error:  # Both splits have the same images.
        load_dataset(recipe.data)
    assert f"Shards are in two splits:\n  {names[0].replace('2-', '0-', 1)} (train) and " in str(error.value)
    assert f"\n  {names[0]} (train) and {names[1]} (test)\nRemove one shard of each pair from rec" in str(error.value)
    assert load_dataset(recipe.data, disjoint=False).splits["train"].size == 10


@pytest.mark.combination("read shards with fewer images than records.json lists", "refused; the shard is named")
@pytest.mark.parametrize("cache", rest_slow([True, False]))
def test_an_index_of_more_images_is_refused(tmp_path, cache):
    recipe, index = tiny_shards(tmp_path)
    name = "train-00001-of-00003.tfrecord"
    index.write_text(index.read_text().replace(f'"{name}": 4', f'"{name}": 1234'))
    source = load_dataset(recipe.data, disjoint=False).splits["train"]
    changes = Augmentation(
        lambda sample: sample | {"image": tf.ensure_shape(tf.io.decode_png(sample["image"]), [8, 8, 1])},
        lambda sample, seed: sample,
        lambda images, labels, *rest: (images, labels),
    )
    recipe = override(recipe, [f"data.cache={str(cache).lower()}", "fit.batch_size=500"])
    with pytest.raises(tf.errors.OpError) as error:
        list(training_batches(source, changes, lambda sample: sample["label"], recipe)(range(3))(0, 1, 500))
    assert raised_in_pipeline(error.value) == (
        f"{tmp_path / name} has 4 images, but records.json lists 1,234. Correct the number in records.json, or write "
        f"the shards again into another directory: python -m training records RECIPE --to DIRECTORY"
    )


@pytest.mark.slow
def test_a_stream_is_shuffled_as_far_as_its_buffer_goes(photographs, tmp_path):
    directory = str(tmp_path / "shards")
    write_records(load_dataset(photographs.data), directory, images_per_shard=100)
    for buffer in (1, 1000):
        source = read_records(directory, buffer).source("train")
        order = [key["image"] for _, key in keys_of(source, BatchShard(1), seed=1)]
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


@pytest.mark.parametrize("recipe", rest_slow(["shapes_vt_fpn", "digit_sets", "digit_sums"]))
def test_other_annotations_come_back(recipe, tmp_path):
    recipe = override(recipes.load(recipe), ["data.train_images=7"])
    task = TASKS[recipe.task](recipe)
    dataset = task.load()
    splits = {"train": dataset.splits["train"], "test": select(dataset.splits["test"], range(3))}
    dataset = dataclasses.replace(dataset, splits=splits)
    assert write_records(dataset, str(tmp_path), task.annotation, images_per_shard=5) == 3
    found = load_dataset(
        dataclasses.replace(recipe.data, dataset="records", directory=str(tmp_path), train_images=None), task.annotation
    )
    assert found.class_names == dataset.class_names

    def contents(source):
        examples = [
            {name: np.asarray(value) for name, value in e.items()} for e in source.in_order().as_numpy_iterator()
        ]
        return sorted((example["image"].item(), example[task.annotation].tolist()) for example in examples)

    for split, source in splits.items():
        assert contents(found.splits[split]) == contents(source)
        [before, *_], [after, *_] = (source.in_order().take(1) for source in (source, found.splits[split]))
        assert before[task.annotation].dtype == after[task.annotation].dtype
        assert before[task.annotation].shape == after[task.annotation].shape
    with pytest.raises(InputError, match=f"have the annotation '{task.annotation}', but this task needs 'label'"):
        load_dataset(dataclasses.replace(recipe.data, dataset="records", directory=str(tmp_path), train_images=None))
