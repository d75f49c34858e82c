"""What reaches the model."""

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from keras_vit.decoding import image_decoder
from training import recipes
from training.assignments import override
from training.data import batches, load_dataset
from training.errors import InputError
from training.train import build_model


@pytest.fixture(scope="module")
def digits(brief_recipe):
    return load_dataset(brief_recipe.data)


@pytest.fixture(scope="module")
def decode(brief_recipe):
    return image_decoder(build_model(brief_recipe, 10))


def pixels_and_labels(data):
    images, labels = zip(*data.as_numpy_iterator(), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def test_digits_are_scikit_learns_with_a_stratified_fifth_held_out(digits, decode, brief_recipe):
    assert digits.sizes == {"test": 360, "train": 1293, "validation": 144}
    assert digits.class_names == tuple("0123456789")
    parts = {split: pixels_and_labels(batches(digits, split, decode, brief_recipe)) for split in digits.splits}
    images = np.concatenate([images for images, _ in parts.values()])
    labels = np.concatenate([labels for _, labels in parts.values()]).argmax(1)
    original = load_digits()
    expected = np.round(original.images * (255 / 16)).astype("uint8")

    def canonical(images, labels):
        return sorted((image.tobytes(), label) for image, label in zip(images, labels, strict=True))

    assert canonical(images[..., 0], labels) == canonical(expected, original.target)
    test_counts = np.bincount(parts["test"][1].argmax(1))
    assert np.abs(test_counts - np.bincount(original.target) / 5).max() < 1


def test_same_seed_gives_the_same_epochs_and_another_seed_others(digits, decode, brief_recipe):
    def epochs(seed):
        data = batches(digits, "train", decode, override(brief_recipe, [f"seed={seed}"]), training=True)
        return [pixels_and_labels(data) for _ in range(2)]

    first, again, other = epochs(0), epochs(0), epochs(1)
    for (images, labels), (images_again, labels_again) in zip(first, again, strict=True):
        np.testing.assert_array_equal(images, images_again)
        np.testing.assert_array_equal(labels, labels_again)
    assert not np.array_equal(first[0][0], first[1][0])  # Each epoch has an order and changes of its own.
    assert not np.array_equal(first[0][0], other[0][0])


def test_evaluation_images_are_not_changed(digits, decode, brief_recipe):
    images, _ = pixels_and_labels(batches(digits, "validation", decode, brief_recipe))
    stored = next(digits.splits["validation"].as_numpy_iterator())["image"]
    np.testing.assert_array_equal(images[0], tf.io.decode_png(stored))


class TinyPhotographs(tfds.core.GeneratorBasedBuilder):
    """Sixteen images of 20 x 24 pixels, found by its name like any data set of TFDS."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["cat", "dog"])}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(12), "validation": self._generate_examples(4)}

    def _generate_examples(self, count):
        for i in range(count):
            yield i, {"image": np.full((20, 24, 3), 10 * i, "uint8"), "label": i % 2}


@pytest.mark.parametrize("cache", ["true", "false"])
def test_tfds_data_sets_walk_the_same_path(cache, tfds_directory):
    assignments = ["data.dataset=tiny_photographs", "data.validation_fraction=0.25", f"data.cache={cache}"]
    assignments += [f"data.tfds_directory={tfds_directory}", "model.config.num_layers=1"]
    recipe = override(recipes.load("cifar10"), assignments)
    dataset = load_dataset(recipe.data)
    assert dataset.class_names == ("cat", "dog")
    # There is no test split, so the validation split is the test, and validation comes from the training images.
    assert dataset.sizes == {"train": 9, "validation": 3, "test": 4}
    images, labels = pixels_and_labels(
        batches(dataset, "train", image_decoder(build_model(recipe, 2)), recipe, training=True)
    )
    assert images.shape == (9, 32, 32, 3)
    assert images.dtype == "float32"
    np.testing.assert_array_equal(labels.argmax(1), images[:, 16, 16, 0].round() / 10 % 2)


def test_data_sets_that_cannot_be_had_are_refused(tfds_directory, brief_recipe):
    def load(name):
        load_dataset(override(brief_recipe, [f"data.dataset={name}"]).data)

    with pytest.raises(InputError, match="neither digits nor folder"):
        load("cifar11")
    with tfds.testing.mock_data(num_examples=2), pytest.raises(InputError, match="not a data set to classify"):
        load("wider_face")


def test_photographs_are_upright_and_of_the_models_size(tmp_path):
    for name, colour in {"blue": (0, 0, 255), "red": (255, 0, 0)}.items():
        (tmp_path / name).mkdir()
        for i in range(12):
            PIL.Image.new("RGB", (20 + i, 30), colour).save(tmp_path / name / f"{i}.png")
    recipe = override(recipes.load("folder"), [f"data.directory={tmp_path}", "model.input_shape=32,48,3"])
    dataset = load_dataset(recipe.data)
    assert dataset.sizes == {"train": 18, "validation": 2, "test": 4}
    images, labels = pixels_and_labels(batches(dataset, "test", image_decoder(build_model(recipe, 2)), recipe))
    assert images.shape == (4, 32, 48, 3)
    np.testing.assert_array_equal(images[:, 0, 0, 0], np.where(labels.argmax(1) == 1, 255, 0))
