"""Data sets: their classes, their splits, and what is refused."""

import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from keras_vit.decoding import image_decoder
from tests.training.fitting import evaluation_images, keys_of
from training import recipes
from training.assignments import override
from training.data import load_dataset
from training.errors import InputError
from training.models import build_model
from training.sources import IndexedSource, Part, StreamedSource


def sizes(dataset):
    return {name: source.size for name, source in dataset.splits.items()}


@pytest.fixture(scope="module")
def digits(brief_recipe):
    return load_dataset(brief_recipe.data)


@pytest.fixture(scope="module")
def decode(brief_recipe):
    return image_decoder(build_model(brief_recipe, 10))


def test_digits_are_scikit_learns_with_a_stratified_fifth_held_out(digits, decode, brief_recipe):
    assert sizes(digits) == {"test": 360, "train": 1293, "validation": 144}
    assert digits.class_names == tuple("0123456789")
    parts = {split: evaluation_images(digits, split, decode, brief_recipe) for split in digits.splits}
    images = np.concatenate([images for images, _ in parts.values()])
    labels = np.concatenate([labels for _, labels in parts.values()]).argmax(1)
    original = load_digits()
    expected = np.round(original.images * (255 / 16)).astype("uint8")

    def canonical(images, labels):
        return sorted((image.tobytes(), label) for image, label in zip(images, labels, strict=True))

    assert canonical(images[..., 0], labels) == canonical(expected, original.target)
    test_counts = np.bincount(parts["test"][1].argmax(1))
    assert np.abs(test_counts - np.bincount(original.target) / 5).max() < 1


class TinyPhotographs(tfds.core.GeneratorBasedBuilder):
    """Sixteen images of 20 x 24 pixels, found by its name like any data set of TFDS."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["cat", "dog"])}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(range(12)), "validation": self._generate_examples(range(12, 16))}

    def _generate_examples(self, numbers):
        for i in numbers:
            yield i, {"image": np.full((20, 24, 3), 10 * i, "uint8"), "label": i % 2}


class ReassessedPhotographs(TinyPhotographs):
    """The same with all right classes of an image, which may be none, and a validation split only."""

    def _info(self):
        label = tfds.features.Sequence(tfds.features.ClassLabel(names=["cat", "dog"]))
        features = {"image": tfds.features.Image(), "real_label": label}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"validation": self._generate_examples(range(3))}

    def _generate_examples(self, numbers):
        for i in numbers:
            yield i, {"image": np.full((20, 24, 3), 10 * i, "uint8"), "real_label": list(range(i))}


def tiny(tfds_directory, *assignments, name="tiny_photographs"):
    fields = [f"data.dataset={name}", f"data.tfds_directory={tfds_directory}", *assignments]
    return override(recipes.load("cifar10"), fields)


def test_without_a_test_split_the_validation_split_is_the_test(tfds_directory):
    dataset = load_dataset(tiny(tfds_directory, "data.validation_fraction=0.25").data)
    assert dataset.class_names == ("cat", "dog")
    assert sizes(dataset) == {"train": 9, "validation": 3, "test": 4}


def test_splits_can_be_named(tfds_directory):
    splits = ["data.train_split=train[:50%]", "data.validation_split=train[50%:75%]+validation[:1]"]
    splits += ["data.test_split=train[75%:]", "data.validation_fraction=0"]
    dataset = load_dataset(tiny(tfds_directory, *splits).data)
    assert sizes(dataset) == {"train": 6, "validation": 4, "test": 3}


def test_labels_that_were_assessed_again_are_a_test_only(tfds_directory):
    recipe = tiny(tfds_directory, name="reassessed_photographs")
    dataset = load_dataset(recipe.data)
    assert sizes(dataset) == {"test": 3}
    images, labels = evaluation_images(dataset, "test", image_decoder(build_model(recipe, 2)), recipe)
    by_brightness = labels[images.mean(axis=(1, 2, 3)).argsort()]
    np.testing.assert_array_equal(by_brightness, [[0, 0], [1, 0], [1, 1]])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_processes_share_a_stream(tfds_directory, count):
    split = "data.train_split=train[3:]+validation[:2]"
    dataset = load_dataset(tiny(tfds_directory, split, "data.validation_fraction=0").data)
    source = dataset.splits["train"]
    assert isinstance(source, StreamedSource)
    parts = [keys_of(source, Part(batch_size=2 * count, index=i, count=count), seed=4) for i in range(count)]
    assert len({len(keys) for keys in parts}) == 1
    images = [key["image"] for keys in parts for position, key in keys if position >= 0]
    assert len(images) == len(set(images)) == 11


def test_array_records_are_read_in_any_order(tmp_path):
    TinyPhotographs(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    dataset = load_dataset(tiny(tmp_path).data)
    assert isinstance(dataset.splits["train"], IndexedSource)
    recipe = tiny(tmp_path)
    images, labels = evaluation_images(dataset, "test", image_decoder(build_model(recipe, 2)), recipe)
    np.testing.assert_array_equal(labels.argmax(1), images[:, 0, 0, 0] // 10 % 2)


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (["data.dataset=cifar11"], "neither digits, folder nor records"),
        (["data.dataset=records"], "data.directory="),
        (["data.dataset=records", "data.directory=absent"], "is not a directory of shards"),
        (["data.train_split=trian", "data.validation_fraction=0"], r"train split 'trian' of digits cannot be read"),
        (["data.test_split=test[:0]"], r"test split 'test\[:0\]' of digits is empty.*train \(1,437\)"),
    ],
)
def test_data_sets_that_cannot_be_had_are_refused(brief_recipe, assignments, expected):
    recipe = override(brief_recipe, assignments + ["data.tfds_directory=none"] * ("records" in assignments[0]))
    with pytest.raises(InputError, match=expected):
        load_dataset(recipe.data)


def test_what_is_no_data_set_to_classify_is_refused(brief_recipe):
    recipe = override(brief_recipe, ["data.dataset=wider_face"])
    with tfds.testing.mock_data(num_examples=2), pytest.raises(InputError, match="not a data set to classify"):
        load_dataset(recipe.data)


def test_photographs_are_upright_and_of_the_models_size(tmp_path):
    for name, colour in {"blue": (0, 0, 255), "red": (255, 0, 0)}.items():
        (tmp_path / name).mkdir()
        for i in range(12):
            PIL.Image.new("RGB", (20 + i, 30), colour).save(tmp_path / name / f"{i}.png")
    fields = ["model.weights=none", "model.config=Ti/16", "model.input_shape=32,48,3"]
    recipe = override(recipes.load("folder"), [f"data.directory={tmp_path}", *fields])
    dataset = load_dataset(recipe.data)
    assert sizes(dataset) == {"train": 18, "validation": 2, "test": 4}
    images, labels = evaluation_images(dataset, "test", image_decoder(build_model(recipe, 2)), recipe)
    assert images.shape == (4, 32, 48, 3)
    np.testing.assert_array_equal(images[:, 0, 0, 0], np.where(labels.argmax(1) == 1, 255, 0))
