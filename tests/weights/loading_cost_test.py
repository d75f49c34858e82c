"""Loading a large model takes little more time and memory than reading its file."""

import pathlib
import sys
import time

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.catalogue.families import preprocessing_of
from keras_vit.weights.containers.files import open_arrays
from keras_vit.weights.containers.npz import write_npz
from keras_vit.weights.formats import google
from keras_vit.weights.formats.format import ModelDescription
from tests.test_case import without_values


@pytest.fixture
def base(tmp_path):
    """The path of a ViT-B/16 with half the layers in Google's format."""
    config = keras_vit.VARIANTS["B/16"].replace(num_layers=6)
    with without_values():
        shapes = {weight.path: weight.shape for weight in keras_vit.ViT(config).weights}
    rng = np.random.default_rng(0)
    weights = {name: rng.random(shape, "float32") - 0.5 for name, shape in shapes.items()}
    description = ModelDescription(config, (224, 224), 3, 1000, preprocessing_of("google", 224))
    write_npz(tmp_path / "base.npz", *google.FORMAT.write(weights, description).values())
    return tmp_path / "base.npz"


def _seconds(function):
    start = time.process_time()  # The time of this process only: other load on the machine must not count.
    function()
    return time.process_time() - start


def _highest_memory(since_now=False):
    """The peak memory of this process in bytes. `since_now=True` resets the peak first."""
    if since_now:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    [line] = [line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak memory")
def test_a_large_model_loads_quickly_and_in_little_memory(base):
    def read():
        with open_arrays(base) as arrays:
            for name in arrays:
                arrays[name]

    reading = _seconds(read)
    before = _highest_memory(since_now=True)
    loading = _seconds(lambda: keras_vit.from_pretrained(base))
    after = _highest_memory()
    assert loading - reading < 1.5
    assert after - before < 2.5 * base.stat().st_size
