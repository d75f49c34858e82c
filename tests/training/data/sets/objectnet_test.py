"""ObjectNet's classes as published by its authors, and the evaluation of ImageNet-1k classifiers on them."""

import io

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from keras_vit.label_spaces import imagenet1k_classes
from training.data.dataset import Dataset
from training.data.sets.objectnet import imagenet_classes, is_objectnet, shared_part
from training.data.sources import IndexedSource, StreamedSource

# Classes of ObjectNet in the order of folders. Some have several ImageNet-1k classes, some have none.
FOLDERS = ("bench", "bicycle", "coaster", "pen", "tv")


def indices(folder):
    return imagenet_classes()[folder]


def test_the_table_has_the_classes_that_the_paper_counts():
    assert len(imagenet_classes()) == 313
    shared = [found for found in imagenet_classes().values() if found]
    assert len(shared) == 113
    flat = [index for found in shared for index in found]
    assert len(flat) == len(set(flat)) == 125, "no class of ImageNet is two of ObjectNet"


def test_classes_of_some_folders():
    for folder, expected in (
        ("alarm_clock", ["analog_clock", "digital_clock"]),
        ("bicycle", ["mountain_bike", "bicycle-built-for-two"]),
        ("pen", ["ballpoint", "quill", "fountain_pen"]),
        ("t-shirt", ["jersey"]),
        ("wok", ["wok"]),
        ("air_freshener", []),
    ):
        assert [imagenet1k_classes()[index][1] for index in indices(folder)] == expected


def test_folders_of_objectnet_are_recognised():
    assert is_objectnet(FOLDERS)
    assert is_objectnet(["wok"])
    assert not is_objectnet([*FOLDERS, "cat"])
    assert not is_objectnet(["coaster", "air_freshener"])


def picture(color):
    """A picture of 8 x 12 pixels in one color, with a red frame that is two pixels wide."""
    image = np.full((12, 16, 3), (255, 0, 0), "uint8")
    image[2:-2, 2:-2] = color
    return image


def lying(color):
    """A picture from a camera held upright: the pixels are stored sideways, and EXIF contains the orientation."""
    exif, file = PIL.Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    PIL.Image.fromarray(picture(color)).save(file, "jpeg", exif=exif, quality=100, subsampling=0)
    return file.getvalue()


@pytest.fixture(scope="module")
def shared():
    encoded = tf.constant([*(tf.io.encode_png(picture(20 * i)).numpy() for i in range(9)), lying(180)])
    labels = tf.constant([0, 2, 4, 3, 2, 1, 2, 2, 4, 0], tf.int64)
    source = IndexedSource(10, lambda index: {"image": encoded[index], "label": labels[index]})
    return shared_part(Dataset(FOLDERS, {"train": source, "test": source}), ["test"])


def test_other_classes_and_the_frame_of_the_upright_picture_are_left_out(shared):
    assert shared.dataset.class_names == ("bench", "bicycle", "pen", "tv")
    assert shared.num_left_out == 4
    assert list(shared.dataset.splits) == ["test"]
    examples = list(shared.dataset.splits["test"].in_order().as_numpy_iterator())
    assert [example["label"] for example in examples] == [0, 3, 2, 1, 3, 0]
    *pictures, upright = [tf.io.decode_png(example["image"]).numpy() for example in examples]
    for pixels, index in zip(pictures, [0, 2, 3, 5, 8], strict=True):
        np.testing.assert_array_equal(pixels, np.full((8, 12, 3), 20 * index))
    assert upright.shape == (12, 8, 3)
    np.testing.assert_allclose(upright[1:-1, 1:-1], 180, atol=20)  # JPEG blurs the frame into the color.


def test_a_stream_is_read_in_its_order():
    images = [tf.io.encode_png(picture(20 * i)).numpy() for i in range(3)]
    examples = tf.data.Dataset.from_tensor_slices({"image": images, "label": np.array([2, 1, 0])})
    source = StreamedSource(3, lambda ranges, seed: examples, 10)
    part = shared_part(Dataset(FOLDERS, {"test": source}), ["test"]).dataset.splits["test"]
    found = [(int(row["label"]), tf.io.decode_png(row["image"])[0, 0, 0]) for row in part.in_order()]
    assert found == [(1, 20), (0, 40)]


@pytest.mark.parametrize("has_sigmoids", [False, True])
def test_outputs_are_restricted_to_the_shared_classes(shared, has_sigmoids):
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(1000, 0.1), 50).astype("float32")
    probabilities[0, indices("pen")[1]] = 0.9
    found = shared.restrict(probabilities, has_sigmoids)
    best = [[max(row[list(indices(folder))]) for folder in shared.dataset.class_names] for row in probabilities]
    expected = best if has_sigmoids else best / np.sum(best, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[0].argmax() == 2
    # The most probable output among the shared classes belongs to the most probable shared class.
    flat = [(index, i) for i, folder in enumerate(shared.dataset.class_names) for index in indices(folder)]
    first = probabilities[:, [index for index, _ in flat]].argmax(axis=1)
    np.testing.assert_array_equal(found.argmax(axis=1), [flat[place][1] for place in first])
