"""Loading a ViT-B/16 costs little more than reading its file: in time and in memory."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights import google
from keras_vit.weights.checkpoint import Facts
from keras_vit.weights.files import write_npz

# A process of its own, since the highest use of memory is that of a process.
MEASURE = """
import json, resource, sys, time
import keras, numpy as np
import keras_vit
from keras_vit.weights.files import open_arrays

def seconds(function):
    start = time.process_time()  # Of this process: what else the machine does is not to be measured.
    function()
    return time.process_time() - start

def read():
    with open_arrays(sys.argv[1]) as arrays:
        for name in arrays:
            arrays[name]

keras.layers.Dense(2)(np.zeros((1, 2), "float32"))  # What the backend sets up on first use.
reading = min(seconds(read) for _ in range(2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loading = seconds(lambda: keras_vit.from_pretrained(sys.argv[1]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": loading - reading, "bytes": (after - before) * 1024}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is counted in kilobytes on Linux")
def test_a_base_model_loads_quickly_and_in_little_memory(tmp_path):
    path = tmp_path / "base.npz"
    with keras.StatelessScope(initialize_variables=False):
        shapes = {weight.path: weight.shape for weight in keras_vit.ViTB16().weights}
    keras.utils.clear_session()
    rng = np.random.default_rng(0)
    _write_google(path, {name: rng.normal(scale=0.02, size=shape).astype("float32") for name, shape in shapes.items()})
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, path], env=environment, capture_output=True, text=True, check=True
    )
    cost = json.loads(result.stdout.splitlines()[-1])
    assert cost["seconds"] < 3
    assert cost["bytes"] < 2.5 * path.stat().st_size


def _write_google(path, weights):
    facts = Facts(keras_vit.VARIANTS["B/16"], (224, 224), 3, 1000, {"mean": 0.5, "std": 0.5})
    write_npz(path, google.write(weights, facts))
