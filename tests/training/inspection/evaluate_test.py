"""The accuracy of runs and of published weights, on their own data and on other data."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import keras_vit
from keras_vit.label_spaces import imagenet1k_classes
from keras_vit.preprocessing import preprocessing_layer
from tests.text.models import random_model
from tests.training.evaluation.classification_test import NAMES, build, probabilities_of, random_images
from tests.training.tiny_sets import TinySet
from training.data.dataset import Dataset
from training.data.sets.objectnet import imagenet_classes
from training.engine.distribution import Engine
from training.errors import InputError
from training.inspection.evaluate import evaluate_source, read_names
from training.recipe.assignments import override
from training.runs.folder import open_run


@pytest.fixture(scope="module")
def model():
    return build("softmax")


IMAGE, LABEL = tfds.features.Image(shape=(8, 12, 3)), tfds.features.ClassLabel(names=NAMES)


class Tiny(TinySet):
    """Nine images of 8 x 12 pixels in three classes."""

    features = {"image": IMAGE, "label": LABEL}  # noqa: RUF012
    numbers = {"validation": range(9)}  # noqa: RUF012

    def example(self, i):
        return {"image": random_images(9)[i], "label": i % 3}


class TinyTrain(Tiny):
    """The same images in a training split only."""

    numbers = {"train": range(9)}  # noqa: RUF012


@pytest.fixture(scope="module")
def run(model, brief_recipe, tmp_path_factory):
    """A run on another data set with the classes of `tiny`."""
    changes = ["data.train_split=train[:90%]", "data.validation_fraction=0", "data.test_split=train[90%:]"]
    runs = tmp_path_factory.mktemp("runs")
    run = open_run(override(brief_recipe, changes), Dataset(NAMES, {}), runs, None, Engine(None))
    model.save(run.model)
    return run


@pytest.mark.slow
def test_a_split_of_other_data_may_be_one_that_others_would_learn_from(run):
    data = ["data.dataset=tiny_train", "data.test_split=train[:5]", "fit.batch_size=10"]
    assert "of 5 images" in evaluate_source(run.folder, data)
    with pytest.raises(InputError, match=r"the test split 'train\[:5\]' of tiny_train both contain train\[0:5\]"):
        evaluate_source(run.folder, data, "all")  # Some images would count twice.


def test_what_cannot_be_evaluated_is_refused(run):
    for assignments, split, message in (
        (["data.test_split=train"], "test", "data.test_split cannot be changed"),
        (["data.dataset=tiny", "data.validation_fraction=0.5"], "test", "data.validation_fraction cannot be changed"),
        (["data.dataset=tiny"], "validation", "no validation split. It has: test"),
        ([], "all", "was trained on images of these data"),
        ([], "train", "The model has the classes ant, bee, .* gnu, but the data set has 0, 1"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate_source(run.folder, assignments, split)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not the folder of a run: it has no recipe\.json"):
        evaluate_source(tmp_path)


def test_of_many_other_classes_the_first_are_named(run, tmp_path):
    other = dataclasses.replace(run, folder=tmp_path)
    facts = json.loads(run.recipe.read_text()) | {"class_names": [f"class {i}" for i in range(1000)]}
    other.recipe.write_text(json.dumps(facts))
    other.model.symlink_to(run.model)
    with pytest.raises(InputError, match=r"class 9, … \(1,000 in all\), but the data set has ant, bee"):
        evaluate_source(other.folder, ["data.dataset=tiny"])


@pytest.mark.slow
def test_names_classify_without_training(tmp_path, monkeypatch):
    """The file has the classes in another order than the data, a label without a name, and one with two names."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    folders = ["cat", "old_dog", "x"]
    written = write_photographs(tmp_path / "images", folders)
    data = ["data.dataset=folder", f"data.directory={tmp_path / 'images'}", "fit.batch_size=10"]
    model, names = random_model(include_preprocessing=True, input_shape=(12, 12, 3)), tmp_path / "names.txt"
    model.save(tmp_path / "model.keras")
    names.write_text("x = toy, bird\nold_dog\n\ncat\n")
    text = evaluate_source(tmp_path / "model.keras", data, "all", names, "photo")
    images = np.stack([tf.io.decode_png(path.read_bytes()).numpy() for path in written]).astype("float32")
    texts = [model.text_embeddings(f"a photo of a {name}.") for name in ("cat", "old dog", "toy", "bird")]
    texts = np.concatenate([*texts[:2], np.mean(texts[2:], axis=0)])
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    expected = [folders.index(path.parent.name) for path in written]
    share = np.mean(model.similarity(images, texts).argmax(axis=1) == expected)
    assert f"{share:.2%}" in text
    with pytest.raises(InputError, match="There is no file or folder"):
        evaluate_source(tmp_path / "model.npz", data, "all", names)


def test_names_are_read_from_a_file(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("x = toy, bird\nold_dog\n\ncat\n")
    assert read_names(path) == {"x": ["toy", "bird"], "old_dog": ["old dog"], "cat": ["cat"]}
    path.write_text("cat\ncat = dog")
    with pytest.raises(InputError, match="names these classes several times: cat"):
        read_names(path)
    with pytest.raises(InputError, match="cannot be read as text"):
        read_names(tmp_path / "no.txt")


@pytest.fixture(scope="module")
def imagenet_model(tmp_path_factory):
    """The path of a tiny classifier of ImageNet-1k, and the model."""
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    model = keras_vit.ViT(config, input_shape=(8, 8, 3), classes=1000, include_preprocessing=True)
    layer = preprocessing_layer(model)
    layer.set_preprocessing(layer.mean, layer.std, layer.resize, layer.crop, layer.interpolation, "imagenet1k")
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.7, weight.shape) for weight in model.weights])
    path = tmp_path_factory.mktemp("models") / "imagenet.keras"
    model.save(path)
    return path, model


def write_photographs(directory, folders):
    """Writes four images per folder, 8 x 8 pixels in a frame of two; returns {path: pixels in the frame}."""
    rng, written = np.random.default_rng(0), {}
    for folder in folders:
        for i in range(4):
            image = np.full((12, 12, 3), (255, 0, 0), "uint8")
            image[2:-2, 2:-2] = rng.integers(0, 256, (8, 8, 3))
            path = directory / folder / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tf.io.encode_png(image).numpy())
            written[path] = image[2:-2, 2:-2]
    return written


@pytest.mark.slow
def test_a_model_of_imagenet_is_evaluated_on_objectnet(imagenet_model, tmp_path):
    path, model = imagenet_model
    folders = ("air_freshener", "bicycle", "chair", "mug", "pen", "tie", "wok")
    images = write_photographs(tmp_path / "images", folders)
    data = ["data.dataset=folder", f"data.directory={tmp_path / 'images'}", "fit.batch_size=10"]
    lines = evaluate_source(path, data, "all").splitlines()

    shared = {folder: list(imagenet_classes()[folder]) for folder in folders if folder != "air_freshener"}
    right = in_top5 = 0
    all_scores = probabilities_of(model, np.stack(list(images.values())))
    for photograph, scores in zip(images, all_scores, strict=True):
        label = photograph.parent.name
        if label in shared:
            ranked = sorted(shared, key=lambda folder: -scores[shared[folder]].max())
            right, in_top5 = right + (ranked[0] == label), in_top5 + (label in ranked[:5])
    assert 0 < right < in_top5 < 24
    assert lines[:2] == [
        "folder, all images",
        "ObjectNet: the model's 1,000 outputs are restricted to the 6 shared classes; 4 images of other classes are "
        "left out.",
    ]
    assert lines[2].startswith(f"top-1 accuracy     {right / 24:.2%} ({right} of 24 images;")
    assert lines[3].startswith(f"top-5 accuracy     {in_top5 / 24:.2%} ({in_top5} of 24 images;")


@pytest.mark.slow
def test_folders_of_some_classes_of_imagenet_are_other_classes(imagenet_model, tmp_path):
    write_photographs(tmp_path, [wnid for wnid, _ in imagenet1k_classes()[:2]])
    with pytest.raises(InputError, match=r"\(1,000 in all\), but the data set has n01440764"):
        evaluate_source(imagenet_model[0], ["data.dataset=folder", f"data.directory={tmp_path}"], "all")


def test_classes_that_are_not_known_are_asked_for(model, tmp_path):
    model.save(tmp_path / "model.keras")
    with pytest.raises(InputError, match=r"does not say which classes its [\d,]+ outputs are"):
        evaluate_source(tmp_path / "model.keras", ["data.dataset=digits"])
