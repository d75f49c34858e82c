"""With the environment that compose.yaml gives to the server, where weights are taken for frozen, each version of a
model answers as without it."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml

import keras_vit
from tests.test_case import TENSORFLOW, assert_close, randomize, rest_slow

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="TensorFlow Serving has no other backend")
# Two versions in turn, each asked with batches of other sizes and other pixels.
_SERVER = """
import sys
import numpy, tensorflow as tf
folder, outputs = sys.argv[1:]
versions = [tf.saved_model.load(f"{folder}/{version}").signatures["predict_pixels"] for version in "12"]
batches = numpy.load(f"{folder}/batches.npz").values()
answers = [version(images=tf.constant(batch))["probabilities"].numpy() for batch in batches for version in versions]
numpy.savez(outputs, *answers)
"""


@pytest.mark.parametrize("precision", rest_slow(["bfloat16", "float32", "int8"]))
def test_answers_are_the_same(precision, tmp_path):
    rng, shape = np.random.default_rng(0), (33, 46, 3)
    for version in (1, 2):
        model = keras_vit.BiTResNet((1,), 32, input_shape=shape, classes=5)
        randomize(model, scale=0.1 + 0.1 * version)
        keras_vit.export_saved_model(model, tmp_path, version=version, precision=precision, min_agreement=0)
    np.savez(tmp_path / "batches.npz", *[rng.integers(0, 256, (size, *shape), "uint8") for size in (1, 3, 2, 3)])
    [service] = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"].values()
    answers = []
    for environment in ({}, service["environment"]):
        path = str(tmp_path / f"answers-{len(answers)}.npz")
        command = [sys.executable, "-c", _SERVER, str(tmp_path), path]
        subprocess.run(command, env=os.environ | environment, check=True)
        answers.append([*np.load(path).values()])
    for plain, frozen in zip(*answers, strict=True):
        assert_close(frozen, plain)
    firsts = [answer[0] for answer in answers[1]]
    assert min(np.abs(one - other).max() for one, other in itertools.combinations(firsts, 2)) > 1e-3
