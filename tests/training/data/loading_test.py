"""Data sets: their classes, their splits, and invalid settings."""

import dataclasses
import functools
import logging

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from keras_vit.data.decoding import decode_upright
from keras_vit.data.reading import read_samples
from tests.test_case import slow_except
from tests.training.data.sets.folder_test import write_image
from tests.training.fitting import evaluation_images
from tests.training.mock_metadata import mocked_data_sets
from tests.training.tiny_sets import TinySet
from training import recipes
from training.data.loading import load_dataset
from training.data.sources import IndexedSource, StreamedSource
from training.errors import InputError
from training.recipe.assignments import override
from training.recipe.images import Data


def sizes(dataset):
    return {name: source.size for name, source in dataset.splits.items()}


@pytest.fixture(scope="module")
def digits(brief_recipe):
    return load_dataset(brief_recipe.data)


def decoder(height, width):
    """Decodes PNG files of one size. The decoder of a model accepts all files, but takes seconds to trace."""
    return lambda content: tf.ensure_shape(tf.io.decode_png(content, channels=3), [height, width, 3])


@pytest.mark.slow
def test_digits_are_scikit_learns_with_a_stratified_fifth_held_out(digits, brief_recipe):
    assert sizes(digits) == {"test": 360, "train": 1293, "validation": 144}
    assert digits.class_names == tuple("0123456789")
    parts = {split: evaluation_images(digits, split, decoder(8, 8), brief_recipe) for split in digits.splits}
    images = np.concatenate([images for images, _ in parts.values()])
    labels = np.concatenate([labels for _, labels in parts.values()]).argmax(1)
    original = load_digits()
    expected = np.round(original.images * (255 / 16)).astype("uint8")

    def canonical(images, labels):
        return sorted((image.tobytes(), label) for image, label in zip(images, labels, strict=True))

    assert canonical(images[..., 0], labels) == canonical(expected, original.target)
    test_counts = np.bincount(parts["test"][1].argmax(1))
    assert np.abs(test_counts - np.bincount(original.target) / 5).max() < 1


class TinyPhotographs(TinySet):
    """Sixteen images of 20 x 24 pixels."""

    features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["cat", "dog"])}  # noqa: RUF012
    numbers = {"train": range(12), "validation": range(12, 16)}  # noqa: RUF012

    def example(self, i):
        return {"image": np.full((20, 24, 3), 10 * i, "uint8"), "label": i % 2}


class ReassessedPhotographs(TinySet):
    """Three such images in a validation split, each with all of its right classes. The first image has none."""

    labels = tfds.features.Sequence(tfds.features.ClassLabel(names=["cat", "dog"]))
    features = {"image": tfds.features.Image(), "real_label": labels}  # noqa: RUF012
    numbers = {"validation": range(3)}  # noqa: RUF012

    def example(self, i):
        return {"image": np.full((20, 24, 3), 10 * i, "uint8"), "real_label": list(range(i))}


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


def test_data_sets_of_tfds_are_sources_for_prediction(tfds_directory, monkeypatch):
    monkeypatch.setattr(tfds, "builder", functools.partial(tfds.builder, data_dir=tfds_directory))
    samples = list(read_samples("tfds:tiny_photographs:validation[:3]"))
    assert [sample["path"] for sample in samples] == [f"tfds:tiny_photographs:validation[:3]:{n}" for n in range(3)]
    grays = [int(decode_upright(sample["image"], 3)[0, 0, 0]) // 10 for sample in samples]
    assert sorted(grays)[0] >= 12
    assert [sample["label"] for sample in samples] == [("cat", "dog")[gray % 2] for gray in grays]
    assert next(read_samples("tfds:tiny_photographs:train"))["path"].endswith("train:0")
    with pytest.raises(ValueError, match=r"tfds:tiny_photographs cannot be read: .*test"):
        read_samples("tfds:tiny_photographs")


def test_labels_that_were_assessed_again_are_a_test_only(tmp_path):
    ReassessedPhotographs(data_dir=tmp_path, file_format="tfrecord").download_and_prepare()
    recipe = tiny(tmp_path, name="reassessed_photographs")
    dataset = load_dataset(recipe.data)
    assert sizes(dataset) == {"test": 3}
    images, labels = evaluation_images(dataset, "test", decoder(20, 24), recipe)
    by_brightness = labels[images.mean(axis=(1, 2, 3)).argsort()]
    np.testing.assert_array_equal(by_brightness, [[0, 0], [1, 0], [1, 1]])


@pytest.mark.slow
def test_array_records_are_read_in_any_order(tmp_path):
    TinyPhotographs(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    dataset = load_dataset(tiny(tmp_path).data)
    assert isinstance(dataset.splits["train"], IndexedSource)
    images, labels = evaluation_images(dataset, "test", decoder(20, 24), tiny(tmp_path))
    np.testing.assert_array_equal(labels.argmax(1), images[:, 0, 0, 0] // 10 % 2)


def test_data_sets_that_cannot_be_had_are_refused(brief_recipe):
    for assignments, expected in (
        (
            ["data.dataset=digit"],
            "neither one of .*digits, .* nor the name of a TFDS data set.*Did you mean 'digits'",
        ),
        (["data.dataset=records"], "data.directory="),
        (["data.dataset=records", "data.directory=absent"], "is not a directory of shards"),
        (["data.train_split=trian", "data.validation_fraction=0"], r"train split 'trian' of digits cannot be read"),
        (["data.test_split=test[:0]"], r"test split 'test\[:0\]' of digits is empty.*train \(1,437\)"),
    ):
        recipe = override(brief_recipe, assignments + ["data.tfds_directory=none"] * ("records" in assignments[0]))
        with pytest.raises(InputError, match=expected):
            load_dataset(recipe.data)


def test_what_is_no_data_set_to_classify_is_refused(brief_recipe):
    recipe = override(brief_recipe, ["data.dataset=wider_face"])
    with tfds.testing.mock_data(num_examples=2), pytest.raises(InputError, match="cannot be used for image"):
        load_dataset(recipe.data)


BLOCK = {"color": 1, "material": 0, "shape": 2, "size": 0, "rotation": 0.5, "3d_coords": [1, 2, 3]}
VEHICLE = {
    "bbox": tfds.features.BBox(ymin=0.1, xmin=0.2, ymax=0.3, xmax=0.4),
    **{"truncated": 0, "occluded": 0, "alpha": 0.1, "dimensions": [1, 2, 3], "rotation_y": 0.2},
}
# {data set: (format of the files, shape of the images, an example, {label: (number of classes, right class)})}
VTAB = {
    "clevr": (
        "tfrecord",
        (32, 48, 3),
        {
            "objects": [BLOCK | {"pixel_coords": [100, 50, distance]} for distance in (12.5, 8.0, 9.0)],
            "file_name": "a.png",
            "question_answer": [{"question": "How many?", "answer": "4"}],
        },
        {"count": (8, "3 objects"), "closest_distance": (6, "distance up to 8")},
    ),
    "dsprites": (
        "array_record",
        (64, 64, 1),
        {f"value_{name}": 0.5 for name in ("shape", "scale", "orientation", "x_position", "y_position")}
        | {"label_shape": 1, "label_scale": 2, "label_orientation": 39, "label_x_position": 4, "label_y_position": 3},
        {"x_position": (16, "x position 4 to 5"), "orientation": (16, "orientation 38 to 39")},
    ),
    "kitti": (
        "tfrecord",
        (24, 80, 3),
        {
            "objects": [
                VEHICLE | {"type": kind, "location": [-1, 2, distance]}
                for kind, distance in (("Pedestrian", 2.0), ("Van", 20.0), ("Car", 21.0))
            ],
            "image/file_name": "a.png",
        },
        {"closest_vehicle": (4, "vehicle 8 to 20 m")},
    ),
    "smallnorb": (
        "array_record",
        (96, 96, 1),
        {
            "image2": np.zeros((96, 96, 1), "uint8"),
            **{"label_azimuth": 17, "label_elevation": 2, "label_category": 3, "instance": 4, "label_lighting": 5},
        },
        {"label_azimuth": (18, "17"), "label_elevation": (9, "2")},
    ),
}


@pytest.mark.parametrize("name", slow_except(["dsprites"], list(VTAB)))
def test_tasks_of_vtab_have_their_images_and_labels(name, tmp_path):
    """The data sets are files as TFDS prepares them."""
    file_format, shape, example, labels = VTAB[name]
    levels = 2 if name == "dsprites" else 256  # Original dSprites images have the values 0 and 1.
    image = np.random.default_rng(0).integers(0, levels, shape, "uint8")
    builder = tfds.builder(name, data_dir=tmp_path, file_format=file_format)
    builder._split_generators = lambda dl_manager: {"train": [(0, {"image": image, **example})]}
    builder.download_and_prepare()
    for label, expected in labels.items():
        splits = ["data.train_split=train", "data.validation_fraction=0", "data.test_split=train"]
        recipe = tiny(tmp_path, *splits, f"data.label={label}", name=name)
        dataset = load_dataset(recipe.data, disjoint=False)
        assert isinstance(dataset.splits["test"], IndexedSource if file_format == "array_record" else StreamedSource)
        [found_image], [found] = evaluation_images(dataset, "test", decoder(*shape[:2]), recipe)
        np.testing.assert_array_equal(found_image, np.broadcast_to(image * (255 // (levels - 1)), (*shape[:2], 3)))
        assert (len(dataset.class_names), dataset.class_names[found.argmax()], found.sum()) == (*expected, 1)


@pytest.mark.parametrize(
    ("name", "assignments", "expected"),
    [
        ("smallnorb", [], r"smallnorb has no label 'label'.* data\.label to one of: .*label_azimuth, label_lighting"),
        ("clevr", ["data.label=cout"], r"clevr has no label 'cout'.* one of: count, closest_distance\."),
        ("clevr", ["data.label=count"], r"test split 'test' of clevr has images without the chosen.*validation \("),
        (
            "clevr",
            ["data.label=count", "data.test_split=validation[:5]+test[:1]"],
            r"test split 'validation\[:5\]\+test\[:1\]' of clevr has images without the chosen",
        ),
        ("dsprites", ["data.label=value_scale"], r"one of: .*label_y_position, x_position, orientation"),
        ("tiny_photographs", ["data.label=count"], r"tiny_photographs has no label 'count'.* one of: label\."),
    ],
)
def test_labels_that_are_not_there_are_refused(tmp_path, name, assignments, expected):
    sizes = {"train": 12, "validation": 9, "test": 8} if name == "clevr" else {"train": 12}
    with mocked_data_sets(tmp_path, {name: sizes}), pytest.raises(InputError, match=expected):
        load_dataset(tiny(tmp_path, *assignments, name=name).data)


def test_a_label_is_named_for_tfds_only():
    for name in ("digits", "folder", "records"):
        with pytest.raises(InputError, match=r"data\.label is only used for data sets of TFDS other than digits"):
            tiny("none", "data.label=label", name=name)


@pytest.mark.combination("train on a folder of a class whose name has a line break", "refused before the training")
def test_names_of_classes_are_lines_of_text(tmp_path):
    for shade, name in ((0, "ant"), (100, "bee\nor wasp")):
        (tmp_path / name).mkdir()
        for i in range(3):
            PIL.Image.new("L", (4, 4), shade + i).save(tmp_path / name / f"{i}.png")
    recipe = override(recipes.load("folder"), [f"data.directory={tmp_path}"])
    with pytest.raises(InputError, match=r"must be one line of text, .*class 1 .*Received: 'bee\\nor wasp'\. Rename"):
        load_dataset(recipe.data)


@pytest.mark.usefixtures("digits")
def test_tfds_is_left_as_it_is():
    """TFDS is unchanged after data were imported, prepared and read."""
    assert not logging.getLogger("absl").filters
    with pytest.raises(tfds.core.registered.DatasetNotFoundError):
        tfds.builder_cls("digits")


@pytest.mark.combination("evaluate one image of each class with --split all", "all images")
def test_a_folder_that_is_too_small_for_a_test_split(tmp_path):
    for name in ("cat", "dog"):
        write_image(tmp_path / name / "one.png")
    recipe = override(recipes.load("folder"), [f"data.directory={tmp_path}"])
    dataset = load_dataset(recipe.data)
    assert sizes(dataset) == {"train": 2}
    with pytest.raises(InputError, match=r"for a test split: 2 in 2 classes.* raise data\.test_fraction"):
        dataset.source("test")


class TinyRooms(TinySet):
    """Five pictures with depth as numbers in metres and as integers."""

    features = {  # noqa: RUF012
        "image": tfds.features.Image(),
        "depth": tfds.features.Tensor(shape=(2, 3), dtype=np.float16),
        "measured": tfds.features.Image(shape=(None, None, 1), dtype=np.uint16),
        "mask": tfds.features.Image(shape=(None, None, 1)),
    }
    numbers = {"train": range(3), "validation": range(3, 5)}  # noqa: RUF012

    def example(self, i):
        image = np.full((2, 3, 3), 40 + i, "uint8")
        depth = np.array([[np.nan, 1.5, np.inf], [-2.0, 0.25, 0.0]], "float16")
        return {"image": image, "depth": depth, "measured": image[..., :1].astype("uint16"), "mask": image[..., :1]}


def test_depth_of_tfds(tmp_path):
    TinyRooms(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    data = Data(dataset="tiny_rooms", depth="depth", tfds_directory=str(tmp_path), validation_fraction=0)
    dataset = load_dataset(data, "depth")
    assert (dataset.class_names, dataset.units, sizes(dataset)) == (("depth",), ("metres",), {"train": 3, "test": 2})
    for sample in dataset.splits["test"].in_order().as_numpy_iterator():
        np.testing.assert_array_equal(sample["depth"], np.array([[0, 1.5, 0], [0, 0.25, 0]], "float32")[..., None])
    measured = load_dataset(dataclasses.replace(data, depth="measured", depth_scale=0.01), "depth")
    samples = measured.splits["train"].in_order().as_numpy_iterator()
    np.testing.assert_allclose(sorted(sample["depth"].max() for sample in samples), [0.4, 0.41, 0.42], rtol=1e-6)
    with pytest.raises(InputError, match=r"has no depth 'mask'\. Features that could be depth: depth, measured\.$"):
        load_dataset(dataclasses.replace(data, depth="mask"), "depth")
    with pytest.raises(InputError, match=r"has masks, but no depth.*data.depth="):
        load_dataset(dataclasses.replace(data, depth=None, mask="mask", mask_classes=("a", "b")), "depth")
