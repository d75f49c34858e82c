"""With the environment that compose.yaml gives to the server, where weights are taken for frozen, each version of a
model answers with its own."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml

import keras_vit
from tests.test_case import TENSORFLOW, assert_close, randomize

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="TensorFlow Serving has no other backend")
# Two versions in turn, each asked with batches of other sizes and other pixels.
_SERVER = """
import sys
import numpy, tensorflow as tf
folder = sys.argv[1]
versions = [tf.saved_model.load(f"{folder}/{version}").signatures["predict_pixels"] for version in "12"]
batches = numpy.load(f"{folder}/batches.npz").values()
answers = [version(images=tf.constant(batch))["probabilities"].numpy() for batch in batches for version in versions]
numpy.savez(f"{folder}/answers.npz", *answers)
"""


def test_answers_are_those_of_the_models(tmp_path):
    rng, shape = np.random.default_rng(0), (33, 46, 3)
    batches = [rng.integers(0, 256, (size, *shape), "uint8") for size in (1, 3, 2, 3)]
    tiny = functools.partial(keras_vit.BiTResNet, (1,), 32, input_shape=shape, classes=5)
    models = [randomize(tiny(), scale=scale) for scale in (0.2, 0.3)]
    for version, model in enumerate(models, 1):
        keras_vit.export_saved_model(model, tmp_path, version=version)
    np.savez(tmp_path / "batches.npz", *batches)
    [service] = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"].values()
    subprocess.run([sys.executable, "-c", _SERVER, tmp_path], env=os.environ | service["environment"], check=True)
    answers = iter(np.load(tmp_path / "answers.npz").values())
    for batch in batches:
        expected = [model.predict(keras_vit.preprocess_input(batch, model), verbose=0) for model in models]
        assert np.abs(expected[0] - expected[1]).max() > 0.01
        for probabilities in expected:
            assert_close(next(answers), probabilities)
