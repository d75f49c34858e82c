"""Exports that many tests share. Each is made once."""

import os

import keras
import numpy as np
import pytest

from tests.export.exports import export_file, export_pets
from tests.test_case import TENSORFLOW

# TensorFlow's part of an export does not depend on the backend. elsewhere_test.py tests other backends.
_OF_TENSORFLOW = ["clients", "factories", "frozen_weights", "fusion", "int8/litert", "server_files"]
_OF_TENSORFLOW += ["runtime_fusion", "warmup"]
collect_ignore = [] if TENSORFLOW else [f"{name}_test.py" for name in _OF_TENSORFLOW]

# OpenVINO's converter sends usage statistics, in a process that takes seconds, unless it runs in CI.
os.environ.setdefault("TF_BUILD", "tests")


@pytest.fixture
def eagerly(monkeypatch):
    """`predict` computes without compiling, which would take longer than the computation of a few small images."""
    if TENSORFLOW:
        monkeypatch.setattr(keras.Model, "run_eagerly", True)


@pytest.fixture(scope="session")
def pets(tmp_path_factory):
    """A model with 8 x 12 patches, and the folder of its export."""
    return export_pets(tmp_path_factory)


@pytest.fixture(scope="session")
def loaded(pets):
    """The loaded export."""
    import tensorflow as tf

    return tf.saved_model.load(str(pets[1]))


@pytest.fixture(scope="session")
def onnx_file(tmp_path_factory):
    """(model, result of `export_model`). Random images were compared."""
    images = np.random.default_rng(3).integers(0, 256, (5, 12, 8, 3)).astype("uint8")
    return export_file(tmp_path_factory, "onnx", images=images)


@pytest.fixture(scope="session")
def litert_file(tmp_path_factory):
    """(model, result of `export_model`)"""
    return export_file(tmp_path_factory, "litert")


@pytest.fixture(scope="session")
def openvino_file(tmp_path_factory):
    """(model, result of `export_model`). Images of one of the supported sizes were compared."""
    images = np.random.default_rng(3).integers(0, 256, (3, 19, 22, 1)).astype("uint8")
    return export_file(tmp_path_factory, "openvino", images=[images])
