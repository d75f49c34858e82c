"""The pages `docs/coming_from` are true: their code runs, and their tables have the names of the files and models."""

import dataclasses
import inspect
import itertools
import pathlib
import re
import unittest.mock

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from tests.documented_code import check_names, publish
from tests.test_case import assert_close, randomize

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "coming_from"
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"}
TASKS = (
    "Build a model with published weights",
    "Preprocess an image",
    "Predict and decode",
    "Features without the head",
    "Another image size",
    "Fine-tune with new classes",
    "Freeze layers",
    "Load a file or a repository of the Hub",
    "Save and convert",
    "Export and serve",
    "Look at the attention",
)


def blocks(page, label):
    """The blocks of Python below a label such as `keras_vit`, in order."""
    return re.findall(rf"^\*\*{label}\*\*\n\n```python\n(.*?)```", PAGES[page], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_every_task_has_code(page):
    tasks = re.split(r"^## ", PAGES[page], flags=re.MULTILINE)[1:]
    assert [task.partition("\n")[0] for task in tasks] == [*TASKS, "What differs"]
    assert all("**keras_vit**\n\n```python\n" in task for task in tasks[:-1])
    # Code without a label would not be checked.
    assert len(re.findall("```python", PAGES[page])) == len(re.findall(r"^\*\*.*\*\*\n\n```python", PAGES[page], re.M))


@pytest.mark.parametrize("page", PAGES)
def test_names_and_arguments(page):
    check_names("".join(blocks(page, "keras_vit")))


def test_names_and_arguments_of_keras_applications():
    check_names("".join(blocks("keras_applications", "keras.applications")), {"keras": keras})


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_code_runs(page, tmp_path, monkeypatch):
    """All blocks of keras_vit run in order, with small files in place of the published ones, and have these shapes."""
    import tensorflow as tf

    publish(tmp_path, monkeypatch)
    model = _write_sources(tmp_path)
    monkeypatch.setattr(
        "keras_vit.weights.sources.fetch.fetch_from_hub",
        lambda source, settings_files: tmp_path / _REPOSITORIES[source],
    )
    pixels = np.random.default_rng(1).integers(0, 256, (2, 224, 224, 3)).astype("float32")
    names = {"photographs": tf.data.Dataset.from_tensors((pixels, np.array([3, 7]))), "class_names": list("abcdefghij")}
    if page != "timm":  # All pages have the same call, which takes half a minute.
        checked = unittest.mock.create_autospec(keras_vit.export_saved_model)
        monkeypatch.setattr("keras_vit.export_saved_model", checked)
    num_shapes = 0
    for code in blocks(page, "keras_vit"):
        exec(compile(code, page, "exec"), names)
        for name, shape in re.findall(r"^(\w+) = .*  # \(([\w, ]+)\)$", code, re.MULTILINE):
            expected = [int(size) if size.isdigit() else None for size in shape.split(", ")]
            actual = names[name].shape
            assert [a if e is not None else None for a, e in zip(actual, expected, strict=True)] == expected, name
            num_shapes += 1
    assert num_shapes >= 4
    if page == "transformers":  # `own` has the renamed arrays.
        images = pixels / 127.5 - 1
        assert_close(names["own"].predict(images), model.predict(images))


_REPOSITORIES = {
    "hf://timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k": "hub_ti16",
    "hf://google/vit-base-patch16-224": "hub_b16",
}


def _write_sources(folder):
    """Writes the files that the pages load. Returns the model whose weights are in TFViT's file.

    The models differ in their numbers of blocks and heads, so that the shapes in comments belong to one model only.
    """
    keras_vit.save_weights(keras_vit.ViTTi16(), folder / "hub_ti16", "timm")
    # As narrow as Ti/16, for speed, but with the blocks and heads of B/16.
    narrow = keras_vit.ViT("Ti/16", num_heads=12, mlp="gelu_exact")
    keras_vit.save_weights(narrow, folder / "hub_b16", "huggingface")
    plain = randomize(keras_vit.ViT("Ti/16", num_layers=2), scale=0.02)
    keras_vit.save_weights(plain, folder / "vit.npz", "google")
    keras_vit.save_weights(plain, folder / "vit_timm", "timm")
    plain.save(folder / "fine_tuned_earlier.keras")
    model = randomize(keras_vit.ViT("Ti/16", num_layers=2, mlp="gelu_exact"), scale=0.02)
    keras_vit.save_weights(model, folder / "vit_preset", "keras_hub")
    keras_vit.save_weights(model, folder / "vit_folder", "huggingface")
    keras_vit.save_weights(model, folder / "tf_vit", "huggingface")
    file = folder / "tf_vit" / "model.safetensors"
    save_file({_tf_name(name): _tf_array(array) for name, array in load_file(file).items()}, file)
    return model


def _tf_name(name):
    """Name in TFViT of a weight of ViTForImageClassification, as transformers 4.57.6 writes it."""
    name = re.sub(r"layer\.(\d+)", r"layer_._\1", name)
    if "layernorm" in name:
        name = name.replace("weight", "gamma").replace("bias", "beta")
    return name.replace("weight", "kernel").replace(".", "/").replace("layer_/_", "layer_._") + ":0"


def _tf_array(array):
    axes = {2: (1, 0), 4: (2, 3, 1, 0)}.get(array.ndim)
    return np.ascontiguousarray(array.transpose(axes) if axes else array)


def expanded(pattern, block=0):
    """List of all names that `a/{b,c}` stands for. `{i}` is the number of a block, and `{i+1}` the next number."""
    pattern = pattern.replace("{i}", str(block)).replace("{i+1}", str(block + 1))
    choices = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return ["".join(parts) for parts in itertools.product(*choices)]


def patterns_of_weights(page):
    """Rows of the page's table of weights: (pattern of their names, pattern of the names in keras_vit)."""
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \|$", PAGES[page].split("\nNames of the weights")[-1], re.MULTILINE)
    assert len(rows) > 10
    return rows


def names_of_weights(page):
    """Columns of the page's table of weights: (their names, names in keras_vit) of a model with one block."""
    return [set().union(*map(expanded, column)) for column in zip(*patterns_of_weights(page), strict=True)]


def test_arguments_in_tables_exist():
    fields = {field.name for field in dataclasses.fields(keras_vit.ViTConfig)}
    accepted = fields | set(inspect.signature(keras_vit.ViT).parameters)
    tables = re.findall(r"Names of the arguments:(.*?)Names of the weights", "".join(PAGES.values()), re.DOTALL)
    assert len(tables) == 5
    rows = re.findall(r"\| `(\w+)[^|]* \|$", "".join(tables), re.MULTILINE)
    assert len(rows) > 30
    assert set(rows) <= accepted


@pytest.fixture(scope="module")
def small():
    return keras_vit.ViT("Ti/16", num_layers=1, classes=5)


@pytest.mark.parametrize("page", ["google", "keras_hub", "timm", "transformers", "zeromodels"])
def test_tables_have_all_names_of_this_package(page, small):
    assert names_of_weights(page)[1] == {weight.path for weight in small.weights}


@pytest.mark.parametrize(
    ("page", "format", "file"),
    [
        ("timm", "timm", "model.safetensors"),
        ("transformers", "huggingface", "model.safetensors"),
        ("google", "google", ""),
    ],
)
def test_tables_have_all_names_of_the_files(page, format, file, small, tmp_path):
    path = tmp_path / "vit.npz"
    keras_vit.save_weights(small, path if format == "google" else tmp_path, format)
    assert names_of_weights(page)[0] == set(load_file(tmp_path / file) if file else np.load(path))
