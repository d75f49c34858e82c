"""Imports of version 0.1 still work, because users' recipes and notebooks contain them."""

import importlib
import importlib.util

import pytest

import training


@pytest.mark.parametrize(("old", "new"), training.MOVED.items())
def test_an_import_from_the_old_place_names_the_new_one(old, new):
    assert importlib.util.find_spec(f"training.{new}") is not None
    with pytest.raises(ModuleNotFoundError, match=rf"training\.{old} has moved\. Write: from training\.{new} import"):
        importlib.import_module(f"training.{old}")
