"""What a recipe's model is known to be before it is built."""

import pytest

from keras_vit.config import VARIANTS
from training import recipes
from training.assignments import override
from training.errors import InputError
from training.models import without_weights


def test_weights_stand_for_their_architecture():
    """Of those in the catalogue nothing is fetched."""
    weights = ["model.config=none", "model.input_shape=none", "model.weights=Ti/16@augreg-i21k-i1k-384"]
    recipe = override(recipes.load("digits"), [*weights, "model.changes.drop_path_rate=0.1"])
    model = without_weights(recipe).model
    assert model.config == VARIANTS["Ti/16"].replace(drop_path_rate=0.1)
    assert (model.weights, model.input_shape) == (None, (384, 384, 3))
    with pytest.raises(InputError, match=r"model\.weights=Ti/99@imagenet"):
        without_weights(override(recipe, ["model.weights=Ti/99@imagenet"]))
