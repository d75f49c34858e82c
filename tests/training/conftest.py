"""A brief run of the digits recipe that several tests look at."""

import json

import pytest

from training import recipes
from training.config import override

# Small enough for seconds, and everything still happens.
BRIEF = ["fit.epochs=2", "model.config.num_layers=1", "model.config.hidden_dim=16", "model.config.mlp_dim=24"]


@pytest.fixture(scope="session")
def tfds_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("tensorflow_datasets")


@pytest.fixture(scope="session")
def brief_recipe(tfds_directory):
    return override(recipes.load("digits"), [*BRIEF, f"data.tfds_directory={tfds_directory}"])


@pytest.fixture(scope="session")
def brief_run(brief_recipe, tmp_path_factory):
    from training.train import train

    run, evaluation = train(brief_recipe, tmp_path_factory.mktemp("runs"))
    return run, evaluation, json.loads(run.recipe.read_text())
