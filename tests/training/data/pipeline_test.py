"""A batch depends only on its step, whatever the number of processes and devices."""

import dataclasses
import functools
import math
import os
import time
import types

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.training.fitting import keys_of
from training.data import pipeline
from training.data.augment import Augmentation
from training.data.dataset import Dataset
from training.data.loading import load_dataset
from training.data.pipeline import num_steps_per_epoch, training_batches
from training.data.sources import PADDING, BatchShard, IndexedSource
from training.data.subsets import multi_hot
from training.engine.fitting import seed
from training.errors import InputError
from training.recipe.assignments import override
from training.tasks import classification

BATCH, IMAGES = 48, 139  # An epoch has three steps. Its last batch has 43 images.


def decode_digit(sample):
    return sample | {"image": tf.ensure_shape(tf.io.decode_png(sample["image"]), (8, 8, 1))}


def quick_augmentation(config):
    """Changes that make seeds visible. Tracing the changes of recipes takes seconds."""
    is_encoded = config.crop == "inception"

    def change(sample, seed):
        sample = decode_digit(sample) if is_encoded else sample
        return sample | {
            "image": sample["image"] + tf.cast(tf.random.stateless_uniform([], seed, 0, 256, tf.int32), tf.uint8)
        }

    def mix(images, labels, seed, num_real):
        others = tf.random.experimental.index_shuffle(tf.range(num_real), seed, num_real - 1)
        rows = tf.concat([others, tf.range(num_real, tf.shape(images)[0])], axis=0)
        return tf.bitwise.bitwise_xor(images, tf.gather(images, rows)), (labels + tf.gather(labels, rows)) / 2

    return Augmentation(dict if is_encoded else decode_digit, change, mix)


def recipe_with(brief_recipe, *assignments):
    return override(brief_recipe, [f"fit.batch_size={BATCH}", f"data.train_images={IMAGES}", *assignments])


def prepared(recipe, dataset=None, augmentation=None):
    """A function that returns the batches of given steps and a share of each batch."""
    dataset = dataset or load_dataset(recipe.data)
    read_label = functools.partial(classification.Task(recipe).read_label, num_classes=len(dataset.class_names))
    augmentation = augmentation or quick_augmentation(recipe.augment)
    make = training_batches(dataset.splits["train"], augmentation, read_label, recipe)
    return lambda steps, share=(0, 1, BATCH): list(make(steps)(*share).as_numpy_iterator())


def assert_equal(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        for values, other_values in zip(batch, other, strict=True):
            np.testing.assert_array_equal(values, other_values)


@pytest.mark.parametrize(
    ("assignments", "firsts"),
    [
        # The last step of one epoch, and the second step of the next.
        pytest.param((), (2, 4), id="pixels in memory", marks=pytest.mark.slow),
        pytest.param(("data.cache=false",), (4,), id="stream"),
        pytest.param(("augment.crop=inception",), (4,), id="files in memory", marks=pytest.mark.slow),
    ],
)
def test_a_run_can_begin_at_any_step(brief_recipe, assignments, firsts):
    read = prepared(recipe_with(brief_recipe, *assignments))
    batches = read(range(0, 6))
    for first in firsts:
        assert_equal(read(range(first, 6)), batches[first:])


@pytest.mark.slow
def test_seeds_follow_from_the_recipe_the_epoch_and_the_place(brief_recipe):
    """An image's seed follows from its position in all epochs, and a batch's seed follows from its step."""

    def change(sample, seed):
        return sample | {"image": tf.cast(tf.broadcast_to(seed[:, None, None], (2, 8, 1)), tf.uint8)}

    def mix(images, labels, seed, num_real):
        return images, tf.broadcast_to([*tf.unstack(seed), tf.cast(num_real, tf.int64)], (BATCH, 3))

    recipe = recipe_with(brief_recipe, "seed=7")
    assert num_steps_per_epoch(load_dataset(recipe.data), recipe) == 3
    batches = prepared(recipe, augmentation=Augmentation(decode_digit, change, mix))(range(1, 4))
    for step, (images, labels, weights) in enumerate(batches, start=1):
        num_real = [48, 48, 43, 48][step]
        places = range(step * BATCH, step * BATCH + num_real) if step < 3 else range(IMAGES, IMAGES + BATCH)
        np.testing.assert_array_equal(weights, np.arange(BATCH) < num_real)
        np.testing.assert_array_equal(images[:num_real, 0, 0, 0], 7)
        np.testing.assert_array_equal(images[:num_real, 1, 0, 0], places)
        np.testing.assert_array_equal(labels, [[8, step, num_real]] * BATCH)


def test_processes_and_devices_share_a_batch(brief_recipe):
    """Devices share a batch that was mixed as a whole. Each process mixes only its own images."""
    read = prepared(recipe_with(brief_recipe))
    elements = read(range(1, 4), share=(0, 1, BATCH // 3))
    assert_equal([joined(elements[i : i + 3]) for i in range(0, 9, 3)], read(range(1, 4)))
    unmixed = {"mix": lambda images, labels, *rest: (images, labels)}
    augmentation = dataclasses.replace(quick_augmentation(brief_recipe.augment), **unmixed)
    read = prepared(recipe_with(brief_recipe), augmentation=augmentation)
    shares = [read(range(1, 3), share=(i, 2, BATCH // 2)) for i in range(2)]
    assert_equal([joined(parts) for parts in zip(*shares, strict=True)], read(range(1, 3)))


def joined(parts):
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def test_an_indexed_order_is_a_permutation():
    for size in (1, 2, 100):
        source = IndexedSource(size, None)
        keys = [keys_of(source, BatchShard(batch_size=3), epoch, seed=5) for epoch in range(2)]
        for epoch in keys:
            assert len(epoch) == 3 * math.ceil(size / 3)
            assert [position for position, _ in epoch if position != PADDING] == list(range(size))
            assert sorted(index for position, index in epoch if position != PADDING) == list(range(size))
            # Batches are filled up with other images of the epoch, because batch norms see them too.
            assert len({index for _, index in epoch[-3:]}) == min(size, 3)
        assert size < 100 or keys[0] != keys[1]


@pytest.fixture
def set_memory(monkeypatch):
    """A function that sets the number of available bytes of memory."""

    def set_available(size):
        monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=size))

    return set_available


def evaluation_batches(recipe):
    source = load_dataset(recipe.data).splits["validation"]
    make = pipeline.evaluation_batches(
        source, decode_digit, lambda sample: multi_hot(sample["label"], 10), BATCH, recipe.data.cache
    )
    return make(0, 1, BATCH)


def first_batches(recipe):
    return prepared(recipe)(range(1))


@pytest.mark.parametrize(
    ("assignments", "make", "kept", "needed"),
    [
        # An image has 64 bytes and a label has 8.
        pytest.param((), first_batches, "139 images of 0.1 kB", 139 * 72, id="pixels", marks=pytest.mark.slow),
        # 144 images, each with a label vector of ten numbers and one weight.
        pytest.param((), evaluation_batches, "144 images of 0.1 kB", 144 * (64 + 44), id="validation"),
    ],
)
def test_too_many_images_for_the_memory_are_refused(brief_recipe, set_memory, assignments, make, kept, needed):
    recipe = recipe_with(brief_recipe, *assignments)
    # At most four fifths of the available memory are used.
    set_memory(needed / 0.8 - 1)
    with pytest.raises(
        InputError, match=rf"{kept} in memory: 0\.0 GB.*At most 0\.0 GB are available for it. Set data\.cache=false"
    ):
        make(recipe)
    assert make(override(recipe, ["data.cache=false"]))
    set_memory(needed / 0.8 + 1)
    assert make(recipe)


@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() < 2, reason="one at a time")
@pytest.mark.parametrize("cache", ["true", "false"])
def test_images_are_prepared_at_once_though_a_run_is_deterministic(brief_recipe, cache):
    """TensorFlow silently removes parallelism from deterministic pipelines with functions of certain kinds."""
    at_once, most = 0, 0

    def wait(image):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.05)
        at_once -= 1
        return image

    def change(sample, seed):
        image = sample["image"]
        waited = tf.numpy_function(wait, [image], image.dtype, stateful=False)
        return sample | {"image": tf.ensure_shape(waited, image.shape)}

    slow = Augmentation(decode_digit, change, lambda images, labels, *rest: (images, labels))
    recipe = override(brief_recipe, [f"data.cache={cache}", "data.train_images=60", "fit.batch_size=20"])
    seed(recipe)
    prepared(recipe, augmentation=slow)(range(3), (0, 1, 20))
    assert most > 1


def test_a_shuffle_buffer_that_nobody_reads_is_refused(brief_recipe):
    for changes in ((), ("data.dataset=folder", "data.cache=false", "data.tfds_directory=none")):
        with pytest.raises(
            InputError, match=r"shuffle_buffer is only used with data\.cache=false, for records and .*TF"
        ):
            recipe_with(brief_recipe, *changes, "data.shuffle_buffer=5")


def test_images_of_several_classes_are_not_kept(brief_recipe):
    labels = tf.ragged.constant([[], [2, 1]], tf.int64)
    source = IndexedSource(
        2, lambda index: {"image": tf.io.encode_png(tf.zeros([8, 8, 1], tf.uint8)), "label": labels[index]}
    )
    with pytest.raises(InputError, match=r"The size of label may differ .* Set data\.cache=false"):
        prepared(recipe_with(brief_recipe), Dataset(("ant", "bee", "cat"), {"train": source}))


@pytest.mark.slow
def test_evaluation_images_are_not_changed(brief_recipe):
    recipe = recipe_with(brief_recipe)
    dataset = load_dataset(recipe.data)
    batches = evaluation_batches(recipe)
    images = np.concatenate([images[weights > 0] for images, _, weights in batches.as_numpy_iterator()])
    stored = [tf.io.decode_png(e["image"]) for e in dataset.splits["validation"].in_order().as_numpy_iterator()]
    np.testing.assert_array_equal(images, stored)
