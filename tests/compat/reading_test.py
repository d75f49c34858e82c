"""Files that earlier versions wrote give the same numbers."""

import csv
import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.compat.writing import FOLDER, MODELS, RECIPE
from tests.test_case import assert_close, slow_except
from training import recipes
from training.data.loading import load_dataset
from training.engine.train import train
from training.recipe.assignments import override
from training.runs.opening import open_source

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


def _digits(tfds_directory):
    return load_dataset(override(RECIPE, [f"data.tfds_directory={tfds_directory}"]).data)


@pytest.mark.slow
def test_a_run_is_measured(folder, outputs, tfds_directory):
    opened = open_source(folder / "run")
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
    _, weights = train(recipe, folder=run, on_finished=lambda task, dataset, run, weights, state: weights)
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
