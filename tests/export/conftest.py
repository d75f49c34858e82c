"""What is exported once, for all tests that look at it."""

import os

import numpy as np
import pytest

from tests.export.exports import export_file, export_pets
from tests.test_case import TENSORFLOW

# What TensorFlow writes, it writes whatever Keras runs on: elsewhere_test.py is about other backends.
_OF_TENSORFLOW = ["clients", "factories", "frozen_weights", "fusion", "operator_files", "runtime_fusion", "warmup"]
collect_ignore = [] if TENSORFLOW else [f"{name}_test.py" for name in _OF_TENSORFLOW]

# OpenVINO's converter sends statistics to its makers, in a process that takes seconds, unless it runs in CI.
os.environ.setdefault("TF_BUILD", "tests")


@pytest.fixture(scope="session")
def pets(tmp_path_factory):
    """A model with 8 x 12 patches, and the folder that it is exported to."""
    return export_pets(tmp_path_factory)


@pytest.fixture(scope="session")
def loaded(pets):
    """The export, loaded again."""
    import tensorflow as tf

    return tf.saved_model.load(str(pets[1]))


@pytest.fixture(scope="session")
def onnx_file(tmp_path_factory):
    """(model, what `export_model` says of its file); compared on images that are no photographs."""
    images = np.random.default_rng(3).integers(0, 256, (5, 12, 8, 3)).astype("uint8")
    return export_file(tmp_path_factory, "onnx", images=images)


@pytest.fixture(scope="session")
def litert_file(tmp_path_factory):
    """(model, what `export_model` says of its file)"""
    return export_file(tmp_path_factory, "litert")


@pytest.fixture(scope="session")
def openvino_file(tmp_path_factory):
    """(model, what `export_model` says of its file); compared on images of one of the sizes that it takes."""
    images = np.random.default_rng(3).integers(0, 256, (3, 19, 22, 1)).astype("uint8")
    return export_file(tmp_path_factory, "openvino", images=[images])
