"""Names of version 0.1 that have moved."""

import importlib

import pytest

import keras_vit


def test_configs_are_imported_from_their_old_place():
    from keras_vit.config import StemConfig, ViTConfig

    assert (StemConfig, ViTConfig) == (keras_vit.StemConfig, keras_vit.ViTConfig)
    assert importlib.import_module("keras_vit.config") is keras_vit.config


def test_functions_of_baselines_name_their_new_place():
    with pytest.raises(AttributeError, match=r"Write: keras_vit\.baselines\.SEResNet50"):
        keras_vit.SEResNet50  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'SEResNet49'"):
        keras_vit.SEResNet49  # noqa: B018
