"""A subset of a source has the right images in order, for every kind of source."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.test_case import rest_slow
from tests.training.fitting import keys_of
from training.data.dataset import Dataset
from training.data.sources import BatchShard, IndexedSource, StreamedSource
from training.data.subsets import read_labels, select, with_classes, with_names
from training.errors import InputError

LABELS = np.random.default_rng(0).integers(0, 5, 23)


def indexed():
    images = tf.constant([f"image {i}" for i in range(23)])
    labels = tf.constant(LABELS, tf.int64)
    return IndexedSource(23, lambda index: {"image": images[index], "label": labels[index]})


def streamed():
    examples = indexed().in_order()

    def stream(ranges, seed):
        [(first, end)] = ranges
        return examples.skip(first).take(end - first)

    return StreamedSource(23, stream, 10)


@pytest.mark.parametrize("make", rest_slow([indexed, streamed]))
def test_a_selection_holds_the_chosen_images_alone(make):
    np.testing.assert_array_equal(read_labels(make(), "these"), LABELS)
    chosen = [0, 3, 4, 17, 22]
    part = select(make(), chosen)
    assert part.size == 5
    contents = [(example["image"], example["label"]) for example in part.in_order().as_numpy_iterator()]
    assert contents == [(f"image {i}".encode(), LABELS[i]) for i in chosen]
    keys = keys_of(part, BatchShard(batch_size=4))
    assert [position for position, _ in keys] == [0, 1, 2, 3, 4, -1, -1, -1]


def test_several_labels_of_an_image_are_refused():
    source = IndexedSource(4, lambda index: {"image": tf.constant("image"), "label": tf.stack([index, index])})
    with pytest.raises(InputError, match="The images of the test split may have several right classes"):
        read_labels(source, "the test split")


def test_a_selection_of_a_stream_is_shuffled_and_drawn_from():
    part = select(streamed(), [2, 5, 7, 11])
    names = [f"image {i}".encode() for i in (2, 5, 7, 11)]
    orders = [
        [example["image"] for _, example in keys_of(part, BatchShard(batch_size=4), seed=seed)] for seed in (0, 0, 1, 2)
    ]
    assert orders[0] == orders[1]
    assert all(sorted(order) == sorted(names) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    drawn = [example["image"] for example in part.draw(2, seed=0).in_order().as_numpy_iterator()]
    assert len(drawn) == 2
    assert set(drawn) < set(names)


@pytest.mark.parametrize("make", rest_slow([streamed, indexed]))
def test_some_classes(make):
    dataset = Dataset(tuple("abcde"), {"train": make(), "test": make()})
    kept = with_classes(dataset, ("c", "a"))
    assert kept.class_names == ("a", "c")
    for source in kept.splits.values():
        found = [(example["image"], int(example["label"])) for example in source.in_order().as_numpy_iterator()]
        chosen = [i for i in range(23) if LABELS[i] in (0, 2)]
        assert found == [(f"image {i}".encode(), LABELS[i] // 2) for i in chosen]
    for names, message in (
        (("a", "x"), r"data\.classes: there is no class 'x'\..* Classes: a, b, c, d, e"),
        (("a", "a"), r"data\.classes needs at least two different classes\. Received: a, a"),
    ):
        with pytest.raises(InputError, match=message):
            with_classes(dataset, names)
    few = dataclasses.replace(dataset, splits=dataset.splits | {"test": select(make(), [LABELS.tolist().index(1)])})
    with pytest.raises(InputError, match=r"The test split has no image of data\.classes=a,c\."):
        with_classes(few, ("a", "c"))


def test_labels_of_a_model_that_do_not_occur_are_those_of_no_image():
    labels = tf.constant([[True, False], [True, True]])
    source = IndexedSource(2, lambda index: {"image": b"", "labels": labels[index]})
    dataset = Dataset(("cat", "dog"), {"test": source})
    renamed = with_names("labels", dataset, ["ant", "dog", "cat"], are_known=False)
    assert renamed.class_names == ("ant", "dog", "cat")
    found = [example["labels"].tolist() for example in renamed.splits["test"].in_order().as_numpy_iterator()]
    assert found == [[False, False, True], [False, True, True]]
