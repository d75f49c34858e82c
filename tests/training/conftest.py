"""Fixtures of the training tests, such as a short version of the digits recipe."""

import gc
import os
import pathlib
import unittest.mock

import pytest

from benchmarks import quick_xla
from tests.training.fitting import array_pipeline
from training import recipes
from training.recipe.assignments import override

# These settings take seconds, but every stage of a run still happens.
BRIEF = [
    "fit.epochs=2",
    "model.input_shape=8,8,1",
    "model.config.patch_size=2",
    "model.config.num_layers=1",
    "model.config.hidden_dim=16",
    "model.config.mlp_dim=24",
]


@pytest.fixture(autouse=True)
def environment():
    """Restores the environment after each test, because `plan` changes it for the rest of the process."""
    with unittest.mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def tfds_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("tensorflow_datasets")


@pytest.fixture(scope="session")
def jax_variables():
    """Environment variables of JAX processes. They share the compilation cache of the tests on JAX."""
    return quick_xla.variables(pathlib.Path(__file__).parents[2] / ".pytest_cache" / "jax")


@pytest.fixture(scope="session")
def brief_recipe(tfds_directory):
    return override(recipes.load("digits"), [*BRIEF, f"data.tfds_directory={tfds_directory}"])


@pytest.fixture
def on_arrays():
    """Reads the digits from arrays."""
    with array_pipeline():
        yield


@pytest.fixture
def quick_clearing(monkeypatch):
    """Clears Keras's sessions without garbage collection of the objects that earlier tests left."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
