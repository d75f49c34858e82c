"""Opening a model finds the model and the data to evaluate it on."""

import dataclasses
import pathlib

import pytest

import keras_vit
from training.data.dataset import Dataset
from training.engine.distribution import Engine
from training.errors import InputError
from training.recipe.config import Data
from training.runs.folder import open_run
from training.runs.opening import Opened, open_source, recipe_for


@pytest.fixture(scope="module")
def model():
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    return keras_vit.ViT(config, input_shape=(8, 8, 3), classes=3, include_preprocessing=True)


@pytest.fixture(scope="module")
def run(model, brief_recipe, tmp_path_factory):
    run = open_run(
        brief_recipe, Dataset(("ant", "bee", "cat"), {}), tmp_path_factory.mktemp("runs"), None, Engine(None)
    )
    model.save(run.model)
    return run


@pytest.fixture(scope="module")
def opened(run):
    return open_source(run.folder)


@pytest.mark.combination("evaluate a run with another data.test_fraction", "refused")
def test_a_run_has_a_recipe_and_classes(opened, brief_recipe):
    assert (opened.recipe, opened.class_names) == (brief_recipe, ["ant", "bee", "cat"])
    assert opened.is_data_of_run(brief_recipe.data)
    recipe = recipe_for(opened, ["fit.batch_size=7"])
    assert (recipe.data, recipe.fit.batch_size) == (brief_recipe.data, 7)
    with pytest.raises(InputError, match=r"data\.validation_fraction cannot be changed for a trained model"):
        recipe_for(opened, ["data.validation_fraction=0.5"])
    with pytest.raises(InputError, match=r"data\.test_fraction cannot be changed for a trained model"):
        recipe_for(opened, ["data.test_fraction=0.5"])


def test_of_other_data_any_part_may_be_taken(opened, brief_recipe):
    recipe = recipe_for(opened, ["data.dataset=folder", "data.directory=photographs", "data.validation_fraction=0"])
    assert (recipe.data.directory, recipe.data.validation_fraction) == ("photographs", 0)
    assert not opened.is_data_of_run(recipe.data)
    assert recipe_for(opened, ["data.dataset=mnist"]).data.tfds_directory == brief_recipe.data.tfds_directory
    with pytest.raises(InputError, match=r"optimizer\.learning_rate cannot be changed"):
        recipe_for(opened, ["data.dataset=mnist", "optimizer.learning_rate=1"])


@pytest.mark.parametrize(
    ("own", "other", "same"),
    [
        ("photos", "./photos", True),
        ("photos", "{here}/photos/", True),
        ("photos", "animals/../photos", True),
        ("photos", "link", True),
        ("photos", "~/photos", True),
        ("photos", "photos2", False),
        ("gs://bucket/photos", "gs://bucket/photos", True),
        ("gs://bucket/photos", "gs://bucket/other", False),
        ("photos", None, False),
        (None, None, True),
    ],
)
def test_own_data_are_known_by_any_of_their_paths(brief_recipe, own, other, same, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    data = [Data(dataset="records", directory=path and path.format(here=pathlib.Path.cwd())) for path in (own, other)]
    opened = Opened("run", None, None, dataclasses.replace(brief_recipe, data=data[0]))
    assert opened.is_data_of_run(data[1]) is same
    assert not opened.is_data_of_run(dataclasses.replace(data[1], dataset="folder"))


def test_own_data_are_known_by_any_of_their_names(brief_recipe):
    for name in ("cifar10:3.0.2", "cifar10/any", "cifar10"):
        opened = Opened("run", None, None, dataclasses.replace(brief_recipe, data=Data(dataset="cifar10")))
        assert opened.is_data_of_run(Data(dataset=name))
        assert not opened.is_data_of_run(Data(dataset="cifar100"))
        with pytest.raises(InputError, match=r"data\.test_split cannot be changed for a trained model"):
            recipe_for(opened, [f"data.dataset={name}", "data.test_split=train"])
        assert recipe_for(opened, [f"data.dataset={name}"]).data == Data(dataset=name)


def test_published_weights_have_no_data_of_their_own(model, monkeypatch):
    published = {("Ti/16@name", True): model}
    monkeypatch.setattr(
        keras_vit, "from_pretrained", lambda source, include_preprocessing: published[source, include_preprocessing]
    )
    opened = open_source("Ti/16@name")
    assert opened.model is model
    assert opened.recipe is opened.class_names is None
    with pytest.raises(InputError, match=r"has no data of its own\. Name a data set: data\.dataset=NAME"):
        recipe_for(opened, [])
    assert recipe_for(opened, ["data.dataset=mnist", "data.train_split=train[:9]", "data.validation_fraction=0"])


def test_what_takes_normalised_pixels_is_refused(model, tmp_path):
    config = keras_vit.describe(model).config
    keras_vit.ViT(config, input_shape=(8, 8, 3), classes=3).save(tmp_path / "model.keras")
    with pytest.raises(InputError, match="expects normalised pixels"):
        open_source(tmp_path / "model.keras")


def test_what_is_not_there_is_named():
    for source in ("X/99@nowhere", "missing.keras", "missing.npz"):
        with pytest.raises(InputError, match=source.split("@")[0]):
            open_source(source)
