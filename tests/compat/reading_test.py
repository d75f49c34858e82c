"""Files that earlier versions wrote give the same numbers."""

import csv
import json
import shutil
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.compat.writing import FOLDER, MODELS, RECIPE
from tests.models.tiny import SHAPE, tiny_model
from tests.test_case import assert_close, random_inputs, randomize, slow_except, to_numpy
from training import recipes
from training.data.loading import load_dataset
from training.engine.train import train
from training.recipe.assignments import override
from training.runs.opening import open_model

VERSIONS = sorted(path.name for path in FOLDER.iterdir() if path.name[0].isdigit())


@pytest.fixture(scope="module", params=VERSIONS)
def folder(request):
    return FOLDER / request.param


@pytest.fixture(scope="module")
def outputs(folder):
    with np.load(folder / "outputs.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def tfds_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("tensorflow_datasets")


@pytest.mark.parametrize("name", slow_except(["hybrid", "axial", "merging", "vt_fpn"], list(MODELS)))
def test_models(folder, outputs, name):
    model = keras.models.load_model(folder / f"{name}.keras")
    assert_close(model(outputs["images"]), outputs[name])
    assert np.ptp(outputs[name], axis=0).max() > 1e-3
    built = MODELS[name]()
    built.load_weights(folder / f"{name}.weights.h5")
    assert_close(built(outputs["images"]), outputs[name])


@pytest.mark.slow
def test_a_quantized_model(folder, outputs):
    model = keras.models.load_model(folder / "axial_int8.keras")
    block = model.get_layer("encoder_block_1")
    assert block.row.attention.query.quantization_mode == block.column.mlp_block.hidden.quantization_mode == "int8"
    assert_close(model(outputs["images"]), outputs["axial_int8"])


@pytest.mark.slow
def test_attention_pooling_of_a_file_without_the_field_pool_prefix_tokens(tmp_path):
    """Such files were written before attention pooling could leave out prefix tokens. It reads all tokens."""
    changes = {"pooling": "map", "class_token": True, "num_register_tokens": 2}
    model, path = randomize(tiny_model(num_layers=1, **changes, pool_prefix_tokens=True)), tmp_path / "model.keras"
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(entries["config.json"])
    layers = {layer["name"]: layer["config"] for layer in config["config"]["layers"]}
    del layers["preprocessing"]["architecture"]["pool_prefix_tokens"], layers["pooling"]["num_prefix_tokens"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (entries | {"config.json": json.dumps(config)}).items():
            archive.writestr(name, data)
    [images] = random_inputs(SHAPE)
    for same in (keras.saving.load_model(path), keras_vit.from_pretrained(path)):
        np.testing.assert_array_equal(to_numpy(same(images)), to_numpy(model(images)))
        assert keras_vit.describe(same).config == keras_vit.describe(model).config
        assert_close(keras_vit.attention_rollout(same, images), keras_vit.attention_rollout(model, images))
    other = keras_vit.from_pretrained(path, pool_prefix_tokens=False)
    assert list(keras_vit.describe(other).adaptations) == ["pool_prefix_tokens"]
    assert np.abs(to_numpy(other(images)) - to_numpy(model(images))).max() > 1e-3


def _digits(tfds_directory):
    return load_dataset(override(RECIPE, [f"data.tfds_directory={tfds_directory}"]).data)


@pytest.mark.slow
def test_a_run_is_measured(folder, outputs, tfds_directory):
    opened = open_model(folder / "run")
    assert opened.recipe == recipes.load(str(folder / "run")) == RECIPE
    images = _pixels(_digits(tfds_directory).splits["test"])
    assert_close(opened.model(images), outputs["run_probabilities"])
    assert opened.class_names == [str(digit) for digit in range(10)]


@pytest.mark.slow
def test_an_export_answers(folder, outputs, tfds_directory):
    model = tf.saved_model.load(str(folder / "run" / "export" / "1"))
    examples = _digits(tfds_directory).splits["test"].in_order().take(5).as_numpy_iterator()
    encoded = tf.constant([example["image"] for example in examples])
    answers = model.signatures["serving_default"](image_bytes=encoded)
    expected = np.sort(outputs["run_probabilities"][:5], axis=1)[:, ::-1][:, : answers["scores"].shape[1]]
    assert_close(answers["scores"], expected)


@pytest.mark.slow
def test_a_run_goes_on(folder, tmp_path, tfds_directory):
    """Resumed from its second to last checkpoint, a run ends with the same weights and history."""
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    (run / "checkpoints" / "step-000000009.npz").unlink()
    facts = json.loads((run / "recipe.json").read_text())
    del facts["result"]
    facts["recipe"]["data"]["tfds_directory"] = str(tfds_directory)
    (run / "recipe.json").write_text(json.dumps(facts))
    recipe = override(RECIPE, [f"data.tfds_directory={tfds_directory}"])
    _, weights = train(recipe, folder=run, leave=lambda task, dataset, run, weights, keeper: weights)
    finished = keras.models.load_model(folder / "run" / "model.keras")
    for array, variable in zip(weights, finished.variables, strict=True):
        np.testing.assert_allclose(array, variable, atol=1e-5)
    assert _history(run) == pytest.approx(_history(folder / "run"), rel=1e-4)


def _history(run):
    with open(run / "history.csv", newline="") as file:
        return [float(value) for row in csv.DictReader(file) for value in row.values()]


@pytest.mark.slow
def test_records(folder, tfds_directory):
    data = override(RECIPE, ["data.dataset=records", f"data.directory={folder / 'records'}", "data.train_images=none"])
    shards, digits = load_dataset(data.data), _digits(tfds_directory)
    assert shards.class_names == digits.class_names
    for split, source in digits.splits.items():
        assert sorted(_examples(shards.splits[split])) == sorted(_examples(source))


def _examples(source):
    return [(example["image"], int(example["label"])) for example in source.in_order().as_numpy_iterator()]


def _pixels(source):
    return np.stack([tf.io.decode_png(image) for image, _ in _examples(source)]).astype("float32")
