"""Batches: that of a step follows from the step alone, on any number of processes and devices."""

import math

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from tests.training.fitting import keys_of
from training import pipeline, recipes
from training.assignments import override
from training.data import load_dataset
from training.datasets.records import write_records
from training.errors import InputError
from training.models import build_model
from training.pipeline import num_steps_per_epoch, training_batches
from training.sources import PADDING, IndexedSource, Part

BATCH = 50  # Of 1,293 images: 26 steps, and the last has 43 images.


def recipe_with(brief_recipe, *assignments):
    return override(brief_recipe, [f"fit.batch_size={BATCH}", *assignments])


def read(recipe, steps, dataset=None, share=(0, 1, BATCH)):
    dataset = dataset or load_dataset(recipe.data)
    make = training_batches(dataset, build_model(recipe, len(dataset.class_names)), recipe, steps)
    return list(make(*share).as_numpy_iterator())


def assert_equal(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        for values, other_values in zip(batch, other, strict=True):
            np.testing.assert_array_equal(values, other_values)


MIXED = ("augment.mixup=0.5", "augment.randaugment_ops=1")


@pytest.mark.parametrize(
    "assignments",
    [MIXED, (*MIXED, "data.cache=false"), (*MIXED, "augment.crop=inception")],
    ids=["pixels in memory", "stream", "files in memory"],
)
def test_a_run_can_begin_at_any_step(brief_recipe, assignments):
    recipe = recipe_with(brief_recipe, *assignments)
    batches = read(recipe, range(0, 29))
    for first in (1, 25, 26, 27):
        assert_equal(read(recipe, range(first, 29)), batches[first:])


def test_every_image_is_read_once_an_epoch_in_an_order_of_its_own(brief_recipe):
    recipe = recipe_with(brief_recipe, "augment.rotation=0", "augment.translation=0", "augment.scale=0", FILL)
    assert num_steps_per_epoch(load_dataset(recipe.data), recipe) == 26
    batches = read(recipe, range(0, 52))
    epochs = [np.concatenate([images[weights > 0] for images, _, weights in batches[i : i + 26]]) for i in (0, 26)]
    assert len(epochs[0]) == len(epochs[1]) == 1293
    first, second = ([image.tobytes() for image in epoch] for epoch in epochs)
    assert first != second
    assert sorted(first) == sorted(second)


FILL = "augment.fill=reflect"


def test_the_last_batch_of_an_epoch_is_filled_up_with_padding(brief_recipe):
    images, labels, weights = read(recipe_with(brief_recipe, *MIXED), range(25, 26))[0]
    assert images.shape == (BATCH, 8, 8, 1)
    np.testing.assert_array_equal(weights, [1.0] * 43 + [0.0] * 7)
    np.testing.assert_allclose(labels[:43].sum(1), 1, rtol=1e-6)


def test_another_seed_gives_other_batches(brief_recipe):
    first, again, other = (read(recipe_with(brief_recipe, f"seed={seed}"), range(2)) for seed in (0, 0, 1))
    assert_equal(first, again)
    assert not np.array_equal(first[0][0], other[0][0])


@pytest.mark.parametrize("count", [2, 5])
def test_processes_share_a_batch(brief_recipe, count):
    recipe = recipe_with(brief_recipe)
    shares = [read(recipe, range(24, 28), share=(i, count, BATCH // count)) for i in range(count)]
    together = [tuple(map(np.concatenate, zip(*parts, strict=True))) for parts in zip(*shares, strict=True)]
    assert_equal(together, read(recipe, range(24, 28)))


def test_devices_share_a_batch_that_was_mixed_as_a_whole(brief_recipe):
    recipe = recipe_with(brief_recipe, *MIXED)
    elements = read(recipe, range(24, 27), share=(0, 1, BATCH // 5))
    together = [tuple(map(np.concatenate, zip(*elements[i : i + 5], strict=True))) for i in range(0, 15, 5)]
    assert_equal(together, read(recipe, range(24, 27)))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_an_indexed_order_is_a_permutation(size):
    source = IndexedSource(size, None)
    keys = [keys_of(source, Part(batch_size=3), epoch, seed=5) for epoch in range(2)]
    for epoch in keys:
        assert len(epoch) == 3 * math.ceil(size / 3)
        assert [position for position, _ in epoch if position != PADDING] == list(range(size))
        assert sorted(index for position, index in epoch if position != PADDING) == list(range(size))
    assert size < 100 or keys[0] != keys[1]


def test_too_many_pixels_for_the_memory_are_refused(brief_recipe, monkeypatch):
    monkeypatch.setattr(pipeline, "_MEMORY_SHARE", 1e-9)
    with pytest.raises(InputError, match=r"1,293 images of 8x8x1 in memory: .* GB.*Set data\.cache=false"):
        read(recipe_with(brief_recipe), range(1))
    assert read(recipe_with(brief_recipe, "data.cache=false"), range(1))


def test_evaluation_images_are_not_changed(brief_recipe):
    recipe = recipe_with(brief_recipe, *MIXED)
    dataset = load_dataset(recipe.data)
    decode = tf.io.decode_png
    batches = pipeline.evaluation_batches(dataset, "validation", decode, recipe)(0, 1, BATCH)
    images = np.concatenate([images[weights > 0] for images, _, weights in batches.as_numpy_iterator()])
    stored = [tf.io.decode_png(e["image"]) for e in dataset.splits["validation"].in_order().as_numpy_iterator()]
    np.testing.assert_array_equal(images, stored)


@pytest.fixture
def photographs(tmp_path):
    """A recipe for 23 photographs of two classes, whose brightness tells which one it is."""
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
    for count in (1, 2, 3):
        parts = [keys_of(shards.splits["train"], Part(2 * count, i, count), seed=1) for i in range(count)]
        images = [key["image"] for keys in parts for position, key in keys if position != PADDING]
        assert len(images) == len(set(images)) == shards.splits["train"].size
    with pytest.raises(InputError, match="holds shards already"):
        write_records(dataset, str(directory))


def test_a_stream_is_shuffled_as_far_as_its_buffer_goes(photographs, tmp_path):
    dataset = load_dataset(photographs.data)
    write_records(dataset, str(tmp_path / "shards"), images_per_shard=100)
    orders = {}
    for buffer in (1, 1000):
        fields = ["data.dataset=records", f"data.directory={tmp_path / 'shards'}", f"data.shuffle_buffer={buffer}"]
        source = load_dataset(override(photographs, fields).data).splits["train"]
        orders[buffer] = [key["image"] for _, key in keys_of(source, Part(1), seed=1)]
    stored = [example["image"] for example in source.in_order().as_numpy_iterator()]
    assert orders[1] == stored
    assert orders[1000] != stored
