"""Versions of a model answer the same with and without compose.yaml's environment, which treats weights as frozen.
tests/serving runs other models in that environment."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml

import keras_vit
from tests.test_case import assert_close, randomize

# Runs two versions of each folder in turn, with batches of different sizes and pixels.
_SERVER = """
import sys
import numpy, tensorflow as tf
batches, outputs, *folders = sys.argv[1:]
batches = list(numpy.load(batches).values())
answers = []
for folder in folders:
    versions = [tf.saved_model.load(f"{folder}/{version}").signatures["predict_pixels"] for version in "12"]
    answers += [version(images=tf.constant(b))["probabilities"].numpy() for b in batches for version in versions]
numpy.savez(outputs, *answers)
"""


@pytest.mark.slow
def test_answers_are_the_same(tmp_path):
    rng, shape = np.random.default_rng(0), (33, 46, 3)
    folders = [tmp_path / precision for precision in ("bfloat16", "float32", "int8")]
    for version in (1, 2):
        model = keras_vit.BiTResNet((1,), 32, input_shape=shape, classes=5)
        randomize(model, scale=0.1 + 0.1 * version)
        for folder in folders:
            options = {"signatures": ["serving_default", "predict_pixels"], "min_agreement": 0}
            keras_vit.export_saved_model(model, folder, version=version, precision=folder.name, **options)
    np.savez(tmp_path / "batches.npz", *[rng.integers(0, 256, (size, *shape), "uint8") for size in (1, 3, 2, 3)])
    [service] = yaml.safe_load((folders[0] / "compose.yaml").read_text())["services"].values()
    answers = []
    for environment in ({}, service["environment"]):
        path = tmp_path / f"answers-{len(answers)}.npz"
        command = [sys.executable, "-c", _SERVER, tmp_path / "batches.npz", path, *folders]
        subprocess.run(command, env=os.environ | environment, check=True)
        answers.append([*np.load(path).values()])
    for plain, frozen in zip(*answers, strict=True):
        assert_close(frozen, plain)
    num_answers = len(answers[1]) // len(folders)
    for start in range(0, len(answers[1]), num_answers):
        firsts = [answer[0] for answer in answers[1][start : start + num_answers]]
        assert min(np.abs(one - other).max() for one, other in itertools.combinations(firsts, 2)) > 1e-3
