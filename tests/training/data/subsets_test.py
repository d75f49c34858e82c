"""A subset of a source has the right images in order, for every kind of source."""

import numpy as np
import pytest
import tensorflow as tf

from tests.training.fitting import keys_of
from training.data.sources import IndexedSource, Part, StreamedSource
from training.data.subsets import read_labels, select
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


@pytest.mark.parametrize("make", [indexed, streamed])
def test_a_selection_holds_the_chosen_images_alone(make):
    np.testing.assert_array_equal(read_labels(make(), "these"), LABELS)
    chosen = [0, 3, 4, 17, 22]
    part = select(make(), chosen)
    assert part.size == 5
    contents = [(example["image"], example["label"]) for example in part.in_order().as_numpy_iterator()]
    assert contents == [(f"image {i}".encode(), LABELS[i]) for i in chosen]
    keys = keys_of(part, Part(batch_size=4))
    assert [position for position, _ in keys] == [0, 1, 2, 3, 4, -1, -1, -1]


def test_several_labels_of_an_image_are_refused():
    source = IndexedSource(4, lambda index: {"image": tf.constant("image"), "label": tf.stack([index, index])})
    with pytest.raises(InputError, match="The images of the test split may have several right classes"):
        read_labels(source, "the test split")


def test_a_selection_of_a_stream_is_not_shuffled():
    with pytest.raises(ValueError, match="as a whole, in its order"):
        keys_of(select(streamed(), [2, 5]), Part(batch_size=4), seed=0)
