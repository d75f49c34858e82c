"""Data sets: their classes, their splits, and invalid settings."""

import logging

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits
from tensorflow_datasets.core.features import feature

from keras_vit.decoding import image_decoder
from tests.test_case import slow_except
from tests.training.fitting import evaluation_images, keys_of
from tests.training.mock_metadata import mocked_data_sets
from tests.training.tiny_sets import TinySet
from training import recipes
from training.data.loading import load_dataset
from training.data.sources import IndexedSource, Part, StreamedSource
from training.engine.models import build_model
from training.errors import InputError
from training.recipe.assignments import override


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


@pytest.mark.slow
def test_tfds_does_not_warn_of_itself(digits, monkeypatch, caplog):
    # TFDS stops warning after ten times, so an earlier test could hide a warning.
    monkeypatch.setattr(feature.logging, "log_first_n", lambda level, message, n: feature.logging.log(level, message))
    next(iter(digits.splits["train"].in_order()))
    assert not caplog.messages
    feature.log_tf_warning("TensorInfo")
    assert len(caplog.messages) == 1


def test_without_a_test_split_the_validation_split_is_the_test(tfds_directory):
    dataset = load_dataset(tiny(tfds_directory, "data.validation_fraction=0.25").data)
    assert dataset.class_names == ("cat", "dog")
    assert sizes(dataset) == {"train": 9, "validation": 3, "test": 4}


def test_splits_can_be_named(tfds_directory):
    splits = ["data.train_split=train[:50%]", "data.validation_split=train[50%:75%]+validation[:1]"]
    splits += ["data.test_split=train[75%:]", "data.validation_fraction=0"]
    dataset = load_dataset(tiny(tfds_directory, *splits).data)
    assert sizes(dataset) == {"train": 6, "validation": 4, "test": 3}


def test_labels_that_were_assessed_again_are_a_test_only(tmp_path):
    ReassessedPhotographs(data_dir=tmp_path, file_format="tfrecord").download_and_prepare()
    recipe = tiny(tmp_path, name="reassessed_photographs")
    dataset = load_dataset(recipe.data)
    assert sizes(dataset) == {"test": 3}
    images, labels = evaluation_images(dataset, "test", decoder(20, 24), recipe)
    by_brightness = labels[images.mean(axis=(1, 2, 3)).argsort()]
    np.testing.assert_array_equal(by_brightness, [[0, 0], [1, 0], [1, 1]])


@pytest.mark.slow
def test_processes_share_a_stream(tfds_directory):
    splits = ["data.train_split=train[3:]+validation[:2]", "data.test_split=validation[2:]"]
    dataset = load_dataset(tiny(tfds_directory, *splits, "data.validation_fraction=0").data)
    source = dataset.splits["train"]
    assert isinstance(source, StreamedSource)
    for count in (2, 5):
        parts = [keys_of(source, Part(batch_size=2 * count, index=i, count=count), seed=4) for i in range(count)]
        assert len({len(keys) for keys in parts}) == 1
        images = [key["image"] for keys in parts for position, key in keys if position >= 0]
        assert len(images) == len(set(images)) == 11


def test_array_records_are_read_in_any_order(tmp_path):
    TinyPhotographs(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    dataset = load_dataset(tiny(tmp_path).data)
    assert isinstance(dataset.splits["train"], IndexedSource)
    images, labels = evaluation_images(dataset, "test", decoder(20, 24), tiny(tmp_path))
    np.testing.assert_array_equal(labels.argmax(1), images[:, 0, 0, 0] // 10 % 2)


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (["data.dataset=digit"], "neither one of digits, .* nor the name of a TFDS data set.*Did you mean 'digits'"),
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
    with tfds.testing.mock_data(num_examples=2), pytest.raises(InputError, match="cannot be used for image"):
        load_dataset(recipe.data)


@pytest.mark.slow
def test_photographs_are_upright_and_of_the_models_size(tmp_path):
    for name, colour in {"blue": (0, 0, 255), "red": (255, 0, 0)}.items():
        (tmp_path / name).mkdir()
        for i in range(12):
            PIL.Image.new("RGB", (20 + i, 30), colour).save(tmp_path / name / f"{i}.png")
    fields = ["model.weights=none", "model.config=Ti/16", "model.config.num_layers=1", "model.input_shape=32,48,3"]
    recipe = override(recipes.load("folder"), [f"data.directory={tmp_path}", *fields])
    dataset = load_dataset(recipe.data)
    assert sizes(dataset) == {"train": 18, "validation": 2, "test": 4}
    decode, examples = image_decoder(build_model(recipe, 2)), list(dataset.splits["test"].in_order())
    images = np.stack([decode(example["image"]) for example in examples])
    assert images.shape == (4, 32, 48, 3)
    np.testing.assert_array_equal(images[:, 0, 0, 0], [255 * int(example["label"]) for example in examples])


def clevr(distances):
    fixed = {"color": 1, "material": 0, "shape": 2, "size": 0, "rotation": 0.5, "3d_coords": [1, 2, 3]}
    objects = [fixed | {"pixel_coords": [100, 50, distance]} for distance in distances]
    question = {"question": "How many?", "answer": "4"}
    return {"objects": objects, "file_name": "a.png", "question_answer": [question]}


def kitti(*objects):
    box = tfds.features.BBox(ymin=0.1, xmin=0.2, ymax=0.3, xmax=0.4)
    fixed = {"truncated": 0, "occluded": 0, "alpha": 0.1, "bbox": box, "dimensions": [1, 2, 3], "rotation_y": 0.2}
    placed = [fixed | {"type": kind, "location": [-1, 2, distance]} for kind, distance in objects]
    return {"objects": placed, "image/file_name": "a.png"}


def dsprites(x_position, orientation):
    classes = {"shape": 1, "scale": 2, "orientation": orientation, "x_position": x_position, "y_position": 3}
    return {f"label_{name}": value for name, value in classes.items()} | {f"value_{name}": 0.5 for name in classes}


def smallnorb(azimuth, elevation):
    others = {"label_category": 3, "instance": 4, "label_lighting": 5, "image2": np.zeros((96, 96, 1), "uint8")}
    return {"label_azimuth": azimuth, "label_elevation": elevation, **others}


# {data set: (shape of the images, [(example, right class of each label)])}
VTAB_EXAMPLES = {
    "clevr": (
        (32, 48, 3),
        [
            (clevr([12.5, 8.0, 9.0]), {"count": "3 objects", "closest_distance": "distance up to 8"}),
            (clevr([10.5] * 10), {"count": "10 objects", "closest_distance": "distance over 10"}),
        ],
    ),
    "dsprites": (
        (64, 64, 1),
        [
            (dsprites(31, 39), {"x_position": "x position 30 to 31", "orientation": "orientation 38 to 39"}),
            (dsprites(4, 7), {"x_position": "x position 4 to 5", "orientation": "orientation 5 to 7"}),
        ],
    ),
    "kitti": (
        (24, 80, 3),
        [
            (kitti(), {"closest_vehicle": "no vehicle"}),
            (kitti(("Pedestrian", 2.0), ("Van", 20.0), ("Car", 21.0)), {"closest_vehicle": "vehicle 8 to 20 m"}),
        ],
    ),
    "smallnorb": (
        (96, 96, 1),
        [
            (smallnorb(17, 2), {"label_azimuth": "17", "label_elevation": "2"}),
            (smallnorb(5, 8), {"label_azimuth": "5", "label_elevation": "8"}),
        ],
    ),
}


@pytest.fixture(scope="module")
def vtab(tmp_path_factory):
    """(Directory of VTAB data sets as TFDS prepares them, by file format; {data set: its images})."""
    directory, rng = tmp_path_factory.mktemp("vtab"), np.random.default_rng(0)
    images = {}
    for name, (shape, examples) in VTAB_EXAMPLES.items():
        # Original dSprites images have the values 0 and 1.
        images[name] = rng.integers(0, 2 if name == "dsprites" else 256, (len(examples), *shape), "uint8")
        records = [(i, {"image": images[name][i], **example}) for i, (example, _) in enumerate(examples)]
        for file_format in ("tfrecord", "array_record"):
            builder = tfds.builder(name, data_dir=directory / file_format, file_format=file_format)
            builder._split_generators = lambda dl_manager, records=records: {"train": records}
            builder.download_and_prepare()
    return directory, images


# Each label with its number of classes, and each data set in both formats.
VTAB_FORMATS = [
    ("clevr", "count", 8, "tfrecord"),
    ("clevr", "closest_distance", 6, "array_record"),
    ("dsprites", "x_position", 16, "array_record"),
    ("dsprites", "orientation", 16, "tfrecord"),
    ("kitti", "closest_vehicle", 4, "tfrecord"),
    ("kitti", "closest_vehicle", 4, "array_record"),
    ("smallnorb", "label_azimuth", 18, "tfrecord"),
    ("smallnorb", "label_elevation", 9, "array_record"),
]


@pytest.mark.parametrize("task", slow_except(VTAB_FORMATS[2:3], VTAB_FORMATS), ids=str)
def test_tasks_of_vtab_have_their_images_and_labels(task, vtab):
    (name, label, num_classes, file_format), (directory, images) = task, vtab
    height, width = VTAB_EXAMPLES[name][0][:2]
    splits = ["data.train_split=train", "data.validation_fraction=0", "data.test_split=train"]
    recipe = tiny(directory / file_format, *splits, f"data.label={label}", name=name)
    dataset = load_dataset(recipe.data, disjoint=False)
    assert isinstance(dataset.splits["test"], IndexedSource if file_format == "array_record" else StreamedSource)
    assert len(dataset.class_names) == num_classes
    found_images, found = evaluation_images(dataset, "test", decoder(height, width), recipe)
    # TFDS shuffles the images.
    shown = [np.broadcast_to(image, (height, width, 3)) * (255 if name == "dsprites" else 1) for image in images[name]]
    order = [next(i for i, image in enumerate(shown) if np.array_equal(image, one)) for one in found_images]
    assert sorted(order) == [0, 1]
    expected = [VTAB_EXAMPLES[name][1][i][1][label] for i in order]
    assert [dataset.class_names[one.argmax()] for one in found] == expected
    assert found.sum() == 2


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


def test_names_of_classes_are_lines_of_text(tmp_path):
    for name in ("ant", "bee\nor wasp"):
        (tmp_path / name).mkdir()
        for i in range(3):
            PIL.Image.new("L", (4, 4), i).save(tmp_path / name / f"{i}.png")
    recipe = override(recipes.load("folder"), [f"data.directory={tmp_path}"])
    with pytest.raises(InputError, match=r"must be one line of text\. Received: 'bee\\nor wasp'\. Rename"):
        load_dataset(recipe.data)


@pytest.mark.usefixtures("digits")
def test_tfds_is_left_as_it_is():
    """TFDS is unchanged after data were imported, prepared and read."""
    assert not logging.getLogger("absl").filters
    with pytest.raises(tfds.core.registered.DatasetNotFoundError):
        tfds.builder_cls("digits")
