"""The names of layers, with which the paths of weights begin."""

import contextlib

import pytest

from keras_vit.weights.paths import is_layer_name
from tests.weights.converter_case import CONFIG, make_shell
from tests.weights.formats.expressible_test import FREE, SHAPE, changes

ALWAYS = {"images", "patch_tokens", "position_dropout", "preprocessing"}
"""Layers of all models. They have no weights."""


@pytest.mark.slow
def test_a_layer_that_a_field_adds_is_known():
    """Otherwise `from_pretrained` would not accept a change of this field in a `.keras` file."""
    names = set()
    for change in [*changes(), *({name: value} for name, value in FREE.items()), {"axial": True, "pooling": "avg"}]:
        with contextlib.suppress(ValueError):  # Some changes are invalid for this config.
            config = CONFIG.replace(num_layers=1, patch_size=4).replace(**change)
            model = make_shell(config, SHAPE, 5, include_top=config.pooling is not None)
            names |= {layer.name for layer in model.layers}
    assert {"pre_logits", "rotary_positions", "patch_dropout", "distillation_predictions"} <= names
    assert not {name for name in names - ALWAYS if not is_layer_name(name)}, "add these names to weights/paths.py"
