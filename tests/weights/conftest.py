"""Files that many tests share. Each is written once."""

import collections
import functools
import os
import shutil

import pytest

from tests.test_case import canonical_weights
from tests.weights.converter_case import CONFIG, make, save, set_pixels
from tests.weights.sources import file_server

Saved = collections.namedtuple("Saved", ["weights", "path"])


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A function that saves a model and returns its weights and the path of its files. Each model is saved once.

    Its arguments are the format and the arguments of `converter_case.make`. Tests must not change the files;
    `copy_of` makes copies that they can change.
    """

    @functools.cache
    def saved(format="google", config=CONFIG, **arguments):
        model = make(config, **arguments)
        set_pixels(model, format)
        path = save(model, tmp_path_factory.mktemp("saved") / format, format)
        weights = canonical_weights(model)
        for array in weights.values():
            array.flags.writeable = False
        return Saved(weights, path)

    return saved


@pytest.fixture
def server():
    """A local web server without answers."""
    with file_server.running() as running:
        yield running


@pytest.fixture
def copy_of(tmp_path):
    """A function that copies files, so that a test can change them, and returns the path of the copy."""

    def copy_of(path):
        copy = tmp_path / f"copy of {path.name}"
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, copy)
        return copy

    return copy_of
